"""Read tensors from safetensors files.

Input: the paths of the files of one network. Output: slices of its tensors. This module does not
depend on the networks. It reads safetensors only, because a pickle can run code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

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
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} is truncated or damaged ({printable(str(error))}); download it again"
                ) from error

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a tensor in the file's dtype. Only this slice is read."""
        tensor: NDArray[Any] = self._files[key].get_slice(key)[index]
        return tensor


def _check_header(path: Path) -> None:
    """Raise CheckpointError if the header of a file is too long to be read, or OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if MAX_HEADER_BYTES < length < path.stat().st_size:
        raise CheckpointError(
            f"{path} has a header of {length:,} bytes, but at most {MAX_HEADER_BYTES:,} are read; "
            "save it again without the texts or tensors that it does not need"
        )
