"""Weigh the states of tokens, and tell which chunks of a prompt the UNet reads.

Input: states of text encoders, weights of tokens, numbers of chunks. Output: states, and a mask. It
depends on neither text nor networks.

Axes: b slots, 2 the negative prompt and the prompt, k chunks of a prompt, n tokens, d channels.
"""

from typing import Final

import jax
import jax.numpy as jnp

_MAX_RATIO: Final = 1_000.0
"""States are scaled by at most this factor. With negative weights, their mean after weighing may be
zero."""


def used_tokens(used_chunks: jax.Array, chunks: int, length: int) -> jax.Array:
    """Return which tokens lie in the first `used_chunks [b]` chunks, bool `[b, 2, k n]`."""
    used = jnp.arange(chunks) < used_chunks[:, None]  # [b, k]
    return jnp.repeat(jnp.repeat(used, length, axis=1)[:, None], 2, axis=1)


def weigh(states: jax.Array, weights: jax.Array, used: jax.Array) -> jax.Array:
    """Multiply the states of tokens by their weights, and scale them back to the mean that they
    had.

    A prompt whose weights are all 1 keeps its states exactly.

    Args:
        states: `[b, 2, k n, d]`.
        weights: float32 `[b, 2, k n]`.
        used: From `used_tokens`. The means are over these tokens.

    Source: lpw_stable_diffusion of diffusers' community pipelines.
    """
    float_states = states.astype(jnp.float32)
    weighted = float_states * weights[..., None]
    before, after = (
        jnp.sum(jnp.where(used[..., None], each, 0), axis=(2, 3), keepdims=True)
        for each in (float_states, weighted)
    )
    ratio = jnp.where(after == 0, 1, before / jnp.where(after == 0, 1, after))
    scaled = weighted * jnp.clip(ratio, -_MAX_RATIO, _MAX_RATIO)
    is_weighted = (weights != 1).any(axis=2)[:, :, None, None]
    return jnp.where(is_weighted, scaled, float_states).astype(states.dtype)
