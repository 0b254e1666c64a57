"""Hold the reference images of a batch, to whose tokens a transformer attends beside its own.

Axes: b rows, h w size of the latents, c their channels, n tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Reference(NamedTuple):
    """It has the reference images of rows."""

    latents: jax.Array
    """They are `[b, h, w, c]`, without noise."""
    exists: jax.Array
    """bool `[b]`: whether the row has one. Otherwise nothing attends to these latents."""

    def mask(self, first: int, tokens: int) -> jax.Array:
        """Return to which tokens a row attends, bool `[b, n]`: those of the reference image begin
        at `first`."""
        return (jnp.arange(tokens) < first) | self.exists[:, None]
