"""Embed the time of a step beside the pooled state of a text, for transformers.

Input: numbers, and pooled states. Output: what modulates the layers of a transformer.

Axes: b rows, t tokens of a text, d width of the transformer.
"""

from typing import Final, NamedTuple

import jax
from flax import nnx

from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.sinusoids import sinusoids

_WAVES: Final = 256
"""A time, and a guidance scale, is embedded as this many sinusoids. diffusers' configs have no
field for it."""


class EmbeddedText(NamedTuple):
    """It has texts as the blocks read them."""

    tokens: jax.Array
    """They are `[b, t, d]`."""
    pooled: jax.Array
    """It is added to the embedded time, `[b, d]`."""


class Embedder(nnx.Module):
    """It is diffusers' TimestepEmbedding, and its PixArtAlphaTextProjection with SiLU."""

    def __init__(self, channels_in: int, width: int) -> None:
        self.linear_1 = linear(channels_in, width)
        self.linear_2 = linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[b, channels_in]` to `[b, d]`."""
        return self.linear_2(jax.nn.silu(self.linear_1(x)))


class TimeTextEmbedding(nnx.Module):
    """It is diffusers' CombinedTimestepTextProjEmbeddings, with guidance or without it."""

    def __init__(self, width: int, pooled_width: int, *, has_guidance: bool = False) -> None:
        self.timestep_embedder = Embedder(_WAVES, width)
        self.guidance_embedder = Embedder(_WAVES, width) if has_guidance else None
        self.text_embedder = Embedder(pooled_width, width)

    def __call__(
        self, timesteps: jax.Array, pooled: jax.Array, guidance: jax.Array | None = None
    ) -> jax.Array:
        """Embed float32 timesteps `[b]`, beside an embedded text `[b, d]` and guidance scales,
        float32 `[b]`, if they are read."""
        time = self.timestep_embedder(_waves(timesteps, pooled))
        if self.guidance_embedder is not None and guidance is not None:
            # As in diffusers, it is embedded as a timestep that many times larger.
            time += self.guidance_embedder(_waves(guidance * 1000, pooled))
        return time + pooled


def _waves(numbers: jax.Array, like: jax.Array) -> jax.Array:
    waves = sinusoids(numbers, _WAVES, flip_sin_to_cos=True, freq_shift=0)
    return waves.astype(like.dtype)
