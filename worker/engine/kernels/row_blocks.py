"""Split feature maps into blocks of rows for the kernels of convolutions on TPU, and read the rows.

Input: a map of bfloat16, and the norm before a convolution. Output: a row of SiLU of the normalised
map, in float32. A convolution needs the row above a block and the row below it, too.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowBlock:
    """It has a block of rows of a map and the rows beside it, or how a map is split into them.

    Its fields are arrays `[b, h, w, c]`, the blocks of them, or Pallas' specs.
    """

    before: Any
    """It is the row above the block."""
    x: Any
    after: Any
    """It is the row below the block."""

    @classmethod
    def specs(cls, *, height: int, width: int, lanes: int, rows: int) -> "RowBlock":
        """Return how a map is split into blocks of `rows`."""
        row = (1, 1, width, lanes)
        return cls(
            before=pl.BlockSpec(row, lambda n, i: (n, jnp.maximum(i * rows - 1, 0), 0, 0)),
            x=rows_spec(rows, width, lanes),
            after=pl.BlockSpec(
                row, lambda n, i: (n, jnp.minimum(i * rows + rows, height - 1), 0, 0)
            ),
        )

    def read(self, row: jax.Array, normalize: tuple[Any, Any] | None, channels: int) -> jax.Array:
        """Return SiLU(row * scale + shift), float32 `[w, lanes]`. Outside of the map and in lanes
        without a channel it is zero.

        Args:
            row: Row 0 is the one above the block.
            normalize: The blocks of scale and shift. None: the row as it is.
            channels: Of the map.
        """
        rows, (block, blocks) = self.x.shape[1], (pl.program_id(1), pl.num_programs(1))
        x = self.x[0, jnp.clip(row - 1, 0, rows - 1)]
        x = jnp.where(row == 0, self.before[0, 0], x)
        x = jnp.where(row == rows + 1, self.after[0, 0], x).astype(jnp.float32)
        if normalize is not None:
            scale, shift = normalize
            x = x * scale[0] + shift[0]
            # This is x * sigmoid(x). TPUs compute tanh, but not sigmoid.
            x *= 0.5 * jnp.tanh(0.5 * x) + 0.5
        is_outside = ((row == 0) & (block == 0)) | ((row == rows + 1) & (block == blocks - 1))
        x = jnp.where(is_outside, 0.0, x)
        if x.shape[1] > channels:
            lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
            x = jnp.where(lane < channels, x, 0.0)
        return x


def rows_spec(rows: int, width: int, lanes: int) -> pl.BlockSpec:
    """Split a map into blocks of rows."""
    return pl.BlockSpec((1, rows, width, lanes), lambda n, i: (n, i, 0, 0))


def whole_spec(array: jax.Array) -> pl.BlockSpec:
    """Keep an array in the memory of the core, in one buffer."""
    first = (0,) * array.ndim
    return pl.BlockSpec(array.shape, lambda n, i: first, pipeline_mode=pl.Buffered(1))


def image_spec(*shape: int) -> pl.BlockSpec:
    """Take of an array `[b, ...]` what belongs to the image."""
    return pl.BlockSpec((1, *shape), lambda n, i: (n, *(0,) * len(shape)))
