"""Define a feature map that carries the means which a group norm takes of it, where they are known.

It depends on neither the networks nor the kernels.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.placement.mesh import is_bfloat16_on_tpu


class PixelMeans(NamedTuple):
    """It has the means of each channel over the pixels, float32 `[b, c]` each."""

    values: jax.Array
    squares: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FeatureMap:
    """It is a feature map, perhaps with its means."""

    values: jax.Array
    """It is `[b, ..., c]`."""
    means: PixelMeans | None = None
    """The kernel for large maps computes them while it writes the map. None: nobody has."""

    @classmethod
    def join(cls, *parts: Self) -> Self:
        """Put the channels of maps side by side.

        In bfloat16 on TPU, the means of the parts are joined, too. If another layer normalised one
        of the parts, the compiler finds the same sums twice and computes them once.
        """
        values, means = jnp.concatenate([part.values for part in parts], axis=-1), None
        if is_bfloat16_on_tpu(values):
            each = zip(*(part.pixel_means() for part in parts), strict=True)
            means = PixelMeans(*(jnp.concatenate(channels, axis=-1) for channels in each))
        return cls(values, means)

    def pixel_means(self) -> PixelMeans:
        """Return the means. If they are not known, one pass over the map adds up its values and
        their squares."""
        if self.means is not None:
            return self.means
        wide = self.values.astype(jnp.float32)
        return PixelMeans(mean_of_pixels(wide), mean_of_pixels(jnp.square(wide)))


def mean_of_pixels(x: jax.Array) -> jax.Array:
    """Average `x [b, ..., c]` over all axes but the first and the last."""
    return x.mean(range(1, x.ndim - 1))
