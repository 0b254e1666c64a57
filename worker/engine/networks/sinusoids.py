"""Embed numbers, such as timesteps, as sinusoids of many frequencies (Ho et al. 2020).

Input: numbers. Output: an embedding of each, before any layer.
"""

import math
from typing import Final

import jax
import jax.numpy as jnp

_LONGEST_PERIOD: Final = 10_000


def sinusoids(
    numbers: jax.Array, width: int, *, flip_sin_to_cos: bool, freq_shift: int
) -> jax.Array:
    """Return sinusoids of numbers: `[b]` to `[b, width]`, float32. It is diffusers'
    get_timestep_embedding."""
    half = width // 2
    exponents = jnp.arange(half, dtype=jnp.float32) / (half - freq_shift)
    angles = numbers[:, None] * jnp.exp(-math.log(_LONGEST_PERIOD) * exponents)  # [b, width / 2]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([cos, sin] if flip_sin_to_cos else [sin, cos], axis=-1)
