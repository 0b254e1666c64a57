"""Round the matrix of a linear layer to integers of 8 bits, with a scale for each output channel.

Input: a matrix that is read in slices. Output: integers and scales, whose product is the matrix
within half a scale. `worker.engine.networks.int8_layers` computes with them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.placement.mesh import Index, Placement

SCALES: Final = "scales"
"""The scales of a layer have this key among its parameters, beside `kernel` and `bias`."""
INT8: Final = np.dtype(np.int8)
_LARGEST: Final = 127
"""The integers lie between this number and its negative."""


@dataclass(frozen=True)
class Int8Matrix:
    """It rounds a matrix `[in, out]`, of which only the slices that are asked for are read."""

    read: Callable[[Index], NDArray[Any]]
    """It reads a slice of the matrix."""
    dtype: np.dtype[Any]
    """It is the dtype of the scales. Integers are rounded with the scales as this dtype has
    them."""

    def integers(self, index: Index) -> NDArray[np.int8]:
        """Return a slice of the integers. All inputs of its channels are read for the scales."""
        inputs, channels = index
        matrix, scales = self._scaled(channels)
        return np.rint(matrix / scales.astype(np.float32))[inputs].astype(INT8)

    def scales(self, index: Index) -> NDArray[Any]:
        """Return the scales of a slice of the channels."""
        [channels] = index
        return self._scaled(channels)[1]

    def _scaled(self, channels: slice) -> tuple[NDArray[np.float32], NDArray[Any]]:
        matrix = self.read((slice(None), channels)).astype(np.float32)
        largest = np.abs(matrix).max(axis=0)
        smallest = np.finfo(np.float32).tiny  # so that a channel of zeros has a scale, too
        return matrix, np.maximum(largest / _LARGEST, smallest).astype(self.dtype)


def place_int8(
    path: tuple[Any, ...],
    shape: tuple[int, ...],
    read: Callable[[Index], NDArray[Any]],
    dtype: np.dtype[Any],
    placement: Placement,
) -> Iterator[tuple[tuple[Any, ...], jax.Array]]:
    """Round a matrix and place it on the devices.

    Args:
        path: That of the matrix among the parameters of its network.
        shape: Of the matrix, `[in, out]`.
        read: Reads a slice of it.
        dtype: That of the scales.
        placement: The devices.

    Yields:
        The path and the array of the integers, then of the scales.
    """
    rounded, (*layer, _) = Int8Matrix(read, dtype), path
    yield path, placement.place_weight(shape, INT8, rounded.integers)
    yield (*layer, SCALES), placement.place_weight(shape[-1:], dtype, rounded.scales)
