"""Read a checkpoint from one safetensors file in the original format.

Input: the file. Output: the tensors of each network, under the keys of diffusers. Its configs and
tokenizers come from a folder in diffusers format. That folder lies beside the file, or is the one
of the model's base on the Hub. The family of the model says where each key is.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import (
    INDEX,
    CheckpointFiles,
    sha256_of_file,
)
from imagefleet.worker.engine.checkpoint.mismatches import foreign_kind
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles

ENDING: Final = ".safetensors"
_LISTED: Final = 5
"""An error lists at most this many keys."""


def is_single_file(path: Path) -> bool:
    """Return whether a model's path is one file of weights."""
    return path.suffix == ENDING and path.is_file()


def config_folder(file: Path) -> Path | None:
    """Return the folder beside the file that has its configs and tokenizers.

    It has the file's name without its ending. None means that there is no such folder.
    """
    folder = file.with_suffix("")
    return folder if (folder / INDEX).is_file() else None


@dataclass(frozen=True)
class Origin:
    """It says where a tensor is in a file."""

    key: str
    part: tuple[int, int, int] | None = None
    """If several weights are one tensor, as queries, keys and values: which of its equal parts is
    the first of this one, how many this one has, and how many there are."""
    transposed: bool = False
    swaps_halves: bool = False
    """Whether the second half of its rows comes first."""
    is_identity: bool = False
    """Whether it is the identity matrix, with as many rows as the tensor of this key."""


class OriginalFormat(Protocol):
    """It is the format of the program in which the models of a family were trained."""

    def base_model(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return the Hub id of the configs that a file needs.

        Args:
            shapes: By key: the shape of each tensor of the file.

        Returns:
            The id that diffusers chooses. None: the file is of another family.
        """

    def origins(
        self, network: str, keys: Iterable[str], stored: Iterable[str]
    ) -> Mapping[str, Origin]:
        """Return the place of each key of a network.

        Args:
            network: The network's folder in diffusers format.
            keys: Its keys there.
            stored: The keys in the file. They tell which program wrote it.
        """

    def is_read(self, key: str, networks: Sequence[str]) -> bool:
        """Return whether a key of a file is a weight that diffusers reads.

        Args:
            key: In the file.
            networks: Those that are read. Others may be left out.
        """

    def check(self, file: Path, whole: TensorFiles, files: CheckpointFiles) -> None:
        """Check that the file has all parts of its model, and what it says of its training against
        the configs.

        Args:
            file: The path, for errors.
            whole: All tensors of the file.
            files: Those with the configs.

        Raises:
            CheckpointError: A part is missing, or the configs are of another model.
        """


class SingleFile(CheckpointFiles):
    """It has the files of a checkpoint whose weights are in one file."""

    def __init__(
        self,
        file: Path,
        configs: Path,
        original_format: OriginalFormat,
        left_out: Sequence[str] = (),
    ) -> None:
        """Read weights from `file`, and everything else from the folder `configs`.

        As in diffusers, there is no safety checker.
        """
        super().__init__(configs, ("safety_checker", *left_out))
        self._file = file
        self._format = original_format

    def open_weights(
        self, networks: Sequence[str], keys: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, TensorFiles]:
        """Open the weights of these networks, by network, under the keys of diffusers.

        Args:
            networks: Folders in diffusers format.
            keys: By network: the keys that it has.

        Raises:
            CheckpointError: The file is damaged, or has weights that no network has, or does not
                fit its configs.
        """
        whole, found = TensorFiles([self._file]), {}
        self._format.check(self._file, whole, self)
        read: set[str] = set()
        for network in networks:
            places = self._format.origins(network, (keys or {}).get(network, ()), whole.shapes)
            found[network] = OriginalTensors(whole, places)
            read |= {origin.key for origin in places.values()}
        others = whole.shapes.keys() - read
        unread = sorted(key for key in others if self._format.is_read(key, networks))
        if unread:
            kind = foreign_kind(unread, is_one_file=True)
            raise CheckpointError(
                f"{self._file} has {len(unread)} weights that the configs in {self.folder} do not "
                f"name, the first {', '.join(unread[:_LISTED])}; "
                + (f"it looks like {kind}" if kind else "take the file of the same model")
            )
        return {**found}

    def digest(self) -> str:
        """Return `sha256:…` over the file, and names and contents of the configs that were read."""
        weights = sha256_of_file(self._file)
        return f"sha256:{hashlib.sha256(f'{weights}  {super().digest()}'.encode()).hexdigest()}"


class OriginalTensors(TensorFiles):
    """It reads one network in a file of the original format, under the keys of diffusers."""

    def __init__(self, whole: TensorFiles, places: Mapping[str, Origin]) -> None:
        """Show the tensors of `whole` at these places. Keys whose place is empty are left out."""
        self.is_sharded = False
        self._whole = whole
        self._places = {key: place for key, place in places.items() if place.key in whole.shapes}
        self.dtypes = {
            key: "F32" if place.is_identity else whole.dtypes[place.key]
            for key, place in self._places.items()
        }
        self.shapes = {
            key: _shape(whole.shapes[place.key], place) for key, place in self._places.items()
        }

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a tensor in the file's dtype. Only this slice is read."""
        place = self._places[key]
        if place.is_identity:
            return np.eye(*self.shapes[key], dtype=np.float32)[index]
        if place.transposed:
            return self._whole.read_slice(place.key, index[::-1]).T
        if place.swaps_halves:
            columns = self._whole.read_slice(place.key, (slice(None), *index[1:]))
            return np.roll(columns, len(columns) // 2, axis=0)[index[0]]
        if place.part is not None:
            (number, count, _), rows = place.part, self.shapes[key][0]
            start, stop, _ = index[0].indices(rows)
            first = number * rows // count
            index = (slice(first + start, first + stop), *index[1:])
        return self._whole.read_slice(place.key, index)


def _shape(stored: tuple[int, ...], place: Origin) -> tuple[int, ...]:
    if place.is_identity:
        return (stored[0], stored[0])
    if place.transposed:
        return stored[::-1]
    if place.part is None:
        return stored
    _, count, parts = place.part
    return (stored[0] * count // parts, *stored[1:])
