"""Read tensors from safetensors files.

Input: the paths of the files of one network. Output: slices of its tensors. This module does not
depend on the networks. It reads safetensors only, because a pickle can run code.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.text.printable import printable

MAX_HEADER_BYTES: Final = 8 * 1024**2
"""A longer header is not read: one of 19 MB that lists 290,000 tensors takes 530 MB of memory. The
largest checkpoints have headers of some 100 kB; a LoRA whose header describes its training has
one of up to some MB."""
_LENGTH_BYTES: Final = 8
"""A file begins with the length of its header, little-endian."""
_FLOATS_OF_8_BITS: Final = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Dtypes that numpy does not have, so that safetensors does not read them into its arrays, and
their names in ml_dtypes."""


class TensorFiles:
    """It has the open safetensors files of one network. Tensors are read only on demand."""

    def __init__(self, paths: Sequence[Path], *, is_sharded: bool = False) -> None:
        """Open these files.

        Args:
            paths: One file, or all shards.
            is_sharded: Whether an index lists the files.

        Raises:
            CheckpointError: A file is damaged, or two files hold the same tensor.
        """
        self.is_sharded = is_sharded
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        """It has the dtypes as safetensors spells them, such as F16."""
        self.header: dict[str, str] = {}
        """It has the texts in the headers of the files, by field."""
        self._files: dict[str, Any] = {}
        self._of_8_bits: dict[str, NDArray[Any]] = {}
        for path in paths:
            try:
                _check_header(path)
                file: Any = safe_open(path, framework="numpy")
                self.header |= file.metadata() or {}
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    if key in self._files:
                        raise CheckpointError(
                            f"{path} holds {key}, which another shard also holds; "
                            "save the model again with diffusers"
                        )
                    tensor = file.get_slice(key)
                    self.shapes[key] = tuple(tensor.get_shape())
                    self.dtypes[key] = tensor.get_dtype()
                    self._files[key] = file
                self._of_8_bits |= _map_floats_of_8_bits(path, self.dtypes, file.keys())
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} is truncated or damaged ({printable(str(error))}); download it again"
                ) from error

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a tensor in the file's dtype. Only this slice is read.

        F64 becomes float32; a value beyond float32 then is infinite, as in torch.
        """
        if (mapped := self._of_8_bits.get(key)) is not None:
            return np.asarray(mapped[index])
        tensor: NDArray[Any] = self._files[key].get_slice(key)[index]
        if self.dtypes[key] == "F64":
            with np.errstate(over="ignore"):
                return tensor.astype(np.float32)
        return tensor


def _map_floats_of_8_bits(
    path: Path, dtypes: Mapping[str, str], keys: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Map those tensors of a file that numpy has no dtype for. The file was opened without error,
    so its header is right."""
    keys = [key for key in keys if dtypes[key] in _FLOATS_OF_8_BITS]
    if not keys:
        return {}
    import ml_dtypes  # not part of the environment that asks PyTorch, which uses this module too

    with path.open("rb") as file:
        start = _LENGTH_BYTES + (length := _header_length(file))
        header = json.loads(file.read(length))
    content = np.memmap(path, np.uint8, "r")
    mapped = {}
    for key in keys:
        first, last = header[key]["data_offsets"]
        dtype = getattr(ml_dtypes, _FLOATS_OF_8_BITS[dtypes[key]])
        mapped[key] = content[start + first : start + last].view(dtype)
        mapped[key] = mapped[key].reshape(header[key]["shape"])
    return mapped


def _header_length(file: BinaryIO) -> int:
    return int.from_bytes(file.read(_LENGTH_BYTES), "little")


def _check_header(path: Path) -> None:
    """Raise CheckpointError if the header of a file is too long to be read, or OSError."""
    with path.open("rb") as file:
        length = _header_length(file)
    if MAX_HEADER_BYTES < length < path.stat().st_size:
        raise CheckpointError(
            f"{path} has a header of {length:,} bytes, but at most {MAX_HEADER_BYTES:,} are read; "
            "save it again without the texts or tensors that it does not need"
        )
