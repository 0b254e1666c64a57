"""Read a checkpoint from one safetensors file in the original format.

Input: the file. Output: the tensors of each network, under the keys of diffusers. Its configs and
tokenizers come from a folder in diffusers format. It lies beside the file, or is that of the
model's base on the Hub. `original_format` says which key is where.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import (
    INDEX,
    CheckpointFiles,
    sha256_of_file,
)
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.stable_diffusion.original_format import (
    UNREAD,
    Origin,
    base_model,
    origins,
)
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import (
    SCHEDULER,
    PipelineIndex,
)
from imagefleet.worker.engine.families.stable_diffusion.training_markers import (
    MARKERS,
    check_markers,
)

ENDING: Final = ".safetensors"
_LISTED: Final = 5
"""Keys that an error lists."""


def is_single_file(path: Path) -> bool:
    """Return whether a model's path is one file of weights."""
    return path.suffix == ENDING and path.is_file()


def config_folder(file: Path) -> Path | None:
    """Return the folder beside the file that has its configs and tokenizers.

    It has the file's name without its ending. None: there is none.
    """
    folder = file.with_suffix("")
    return folder if (folder / INDEX).is_file() else None


def base_of(file: Path) -> str:
    """Return the Hub id of the model whose configs and tokenizers the file needs.

    Raises:
        CheckpointError: The file is damaged, or of a model that this engine does not know.
    """
    if (base := base_model(TensorFiles([file]).shapes)) is None:
        raise CheckpointError(
            f"{file} does not have the keys of Stable Diffusion 1, 2 or XL in the original "
            "format; give a folder in diffusers format, or another file"
        )
    return base


class SingleFile(CheckpointFiles):
    """The files of a checkpoint whose weights are in one file."""

    def __init__(self, file: Path, configs: Path) -> None:
        """Read weights from `file`, and everything else from the folder `configs`."""
        super().__init__(configs)
        self._file = file

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file. As in diffusers, there is no safety checker."""
        content = super().read_json(name)
        return content | {"safety_checker": [None, None]} if name == INDEX else content

    def open_weights(
        self, networks: Sequence[str], keys: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, TensorFiles]:
        """Open the weights of these networks, by network, under the keys of diffusers.

        Args:
            networks: Folders in diffusers format.
            keys: By network: the keys that it has.

        Raises:
            CheckpointError: The file is damaged, or has weights that no network has, or its model
                was trained for another scheduler.
        """
        whole, found = TensorFiles([self._file]), {}
        index = PipelineIndex.from_json(self.read_json(INDEX))
        check_markers(self._file, whole, index.noise_schedule(self.read_json(SCHEDULER)))
        read: set[str] = set()
        for network in networks:
            places = origins(network, (keys or {}).get(network, ()), whole.shapes)
            found[network] = OriginalTensors(whole, places)
            read |= {origin.key for origin in places.values()}
        unread = sorted(
            key for key in whole.shapes.keys() - read - MARKERS if not UNREAD.match(key)
        )
        if unread:
            raise CheckpointError(
                f"{self._file} has {len(unread)} weights that the configs in {self.folder} do not "
                f"name, the first {', '.join(unread[:_LISTED])}; take the file of the same model"
            )
        return {**found}

    def digest(self) -> str:
        """Return `sha256:…` over the file, and names and contents of the configs that were read."""
        weights = sha256_of_file(self._file)
        return f"sha256:{hashlib.sha256(f'{weights}  {super().digest()}'.encode()).hexdigest()}"


class OriginalTensors(TensorFiles):
    """One network in a file of the original format, under the keys of diffusers."""

    def __init__(self, whole: TensorFiles, places: Mapping[str, Origin]) -> None:
        """Show the tensors of `whole` at these places. Keys whose place is empty are left out."""
        self.is_sharded = False
        self._whole = whole
        self._places = {key: place for key, place in places.items() if place.key in whole.shapes}
        self.dtypes = {key: whole.dtypes[place.key] for key, place in self._places.items()}
        self.shapes = {
            key: _shape(whole.shapes[place.key], place) for key, place in self._places.items()
        }

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a tensor in the file's dtype. Only this slice is read."""
        place = self._places[key]
        if place.transposed:
            return self._whole.read_slice(place.key, index[::-1]).T
        if place.third is not None:
            rows = self.shapes[key][0]
            start, stop, _ = index[0].indices(rows)
            first = place.third * rows
            index = (slice(first + start, first + stop), *index[1:])
        return self._whole.read_slice(place.key, index)


def _shape(stored: tuple[int, ...], place: Origin) -> tuple[int, ...]:
    if place.transposed:
        return stored[::-1]
    return stored if place.third is None else (stored[0] // 3, *stored[1:])
