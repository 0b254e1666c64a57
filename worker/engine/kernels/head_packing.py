"""Define where the heads of an attention layer lie when they are packed side by side for a TPU.

`packed_attention` chooses which layers are packed, and `packed_attention_kernel` computes them.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.kernels.attention_backend import TPU_LANES

KERNEL_NAME: Final = "packed_attention"
"""The programs contain this name, followed by the number of heads and their width, so that
`tools.tpu` finds the kernel."""
_ROWS_MULTIPLE: Final = 16
"""A register of bfloat16 has this many rows."""
_MAX_LANES_PER_CHANNEL: Final = 1.25
"""Heads are packed if the lanes are then nearly full: heads of 40 take 384 lanes for 320 channels,
and heads of 64 take as many lanes as there are channels. Heads of 80 would take 1,024 lanes for 640
channels, and the projections would take longer than the copies."""


@dataclass(frozen=True, kw_only=True)
class HeadPacking:
    """It defines the places of the heads of a layer.

    Keys have as many whole heads in each 128 lanes as fit, a *tile*, and queries have the same in
    each 128 rows. Values have a multiple of 16 rows for each head.
    """

    heads: int
    head_dim: int
    parts: int = 1
    """The heads are split over so many devices, each of which has tiles of its own."""

    @property
    def part(self) -> "HeadPacking":
        """Return the places of the heads that one device has."""
        return replace(self, heads=self.heads // self.parts, parts=1)

    @property
    def fills_lanes(self) -> bool:
        """Return whether the lanes of the keys are nearly full."""
        fits = self.head_dim < TPU_LANES
        return fits and self.lanes <= _MAX_LANES_PER_CHANNEL * self.heads * self.head_dim

    @property
    def query_scale(self) -> float:
        """Return log2(e) / √d. The kernel computes softmax(q kᵀ / √d) of scaled queries by powers
        of 2."""
        return math.log2(math.e) / math.sqrt(self.head_dim)

    @property
    def heads_per_tile(self) -> int:
        """Return the number of heads in 128 lanes."""
        return TPU_LANES // self.head_dim

    @property
    def tiles(self) -> int:
        """Return how many times 128 lanes the keys need."""
        return self.parts * -(-self.heads // self.parts // self.heads_per_tile)

    @property
    def lanes(self) -> int:
        """Return the number of lanes of the keys, which is that of the rows of the queries."""
        return self.tiles * TPU_LANES

    @property
    def rows_per_head(self) -> int:
        """Return the rows of a head of the values, a multiple of 16."""
        return -(-self.head_dim // _ROWS_MULTIPLE) * _ROWS_MULTIPLE

    @property
    def rows_with_sum(self) -> int:
        """Return the rows of a head in the kernel. One or more are spare, to sum up its softmax."""
        return (self.head_dim // _ROWS_MULTIPLE + 1) * _ROWS_MULTIPLE

    def rows_of(self, head: int) -> slice:
        """Return the rows of the values of a head of a tile."""
        return slice(head * self.rows_per_head, (head + 1) * self.rows_per_head)

    def pack_lanes(self, array: jax.Array) -> jax.Array:
        """Put the last axis, `heads * head_dim`, in the order of the lanes; the others are 0."""
        before = array.shape[:-1]
        slots = self.tiles // self.parts * self.heads_per_tile
        by_head = array.reshape(*before, self.parts, -1, self.head_dim)
        by_tile = _pad(by_head, axis=-2, length=slots).reshape(*before, self.tiles, -1)
        return _pad(by_tile, axis=-1, length=TPU_LANES).reshape(*before, self.lanes)

    def pack_rows(self, array: jax.Array) -> jax.Array:
        """Put the last axis, `heads * head_dim`, in the order of the values' rows; others are 0."""
        before = array.shape[:-1]
        by_head = array.reshape(*before, self.heads, self.head_dim)
        return _pad(by_head, axis=-1, length=self.rows_per_head).reshape(*before, -1)

    def unpack_rows(self, array: jax.Array) -> jax.Array:
        """Put the last axis, in the order of `pack_rows`, back to `heads * head_dim`."""
        before = array.shape[:-1]
        by_head = array.reshape(*before, self.heads, self.rows_per_head)
        return by_head[..., : self.head_dim].reshape(*before, -1)


def _pad(array: jax.Array, *, axis: int, length: int) -> jax.Array:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - array.shape[axis])
    return jnp.pad(array, widths)
