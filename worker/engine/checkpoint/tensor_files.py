"""Read tensors from safetensors files.

Input: the paths of the files of one network. Output: slices of its tensors. This module does not
depend on the networks. It reads safetensors only, because a pickle can run code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from imagefleet.shared.errors import CheckpointError


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
                    f"{path} is truncated or damaged ({error}); download it again"
                ) from error

    def read_slice(self, key: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a slice of a tensor in the file's dtype. Only this slice is read."""
        tensor: NDArray[Any] = self._files[key].get_slice(key)[index]
        return tensor
