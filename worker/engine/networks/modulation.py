"""Modulate the layers of a transformer by the time of a step (Peebles & Xie 2023).

Input: tokens, and an embedded time. Output: normalised tokens, or what to multiply and to add.

Axes: b rows, n tokens, d width of the transformer.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.networks.blocks import Layer, linear, normalize
from imagefleet.worker.engine.placement.joined_products import share_whole
from imagefleet.worker.engine.placement.mesh import is_bfloat16_on_tpu

_ROWS: Final = 8
"""A TPU's matrix unit computes a product of this many rows. Of one row the vector unit would."""


def project_time(layer: Layer, time: jax.Array) -> jax.Array:
    """Map embedded times `[b, d]` to `[b, 1, …]`, which each device of a copy has whole.

    On TPU each time is repeated, so that the matrix unit computes the product. It then takes as
    long as reading the matrix, and a quarter of what the vector unit takes. docs/tpu.md has the
    estimates.
    """
    if is_bfloat16_on_tpu(time):
        repeated = jnp.repeat(time[:, None], _ROWS, axis=1)
        rows = jax.lax.optimization_barrier(repeated)  # type: ignore[no-untyped-call]
        return share_whole(layer(rows)[:, :1])
    return share_whole(layer(time))[:, None]


class Modulated(NamedTuple):
    """It says how a time changes the input and the output of a layer, each `[b, 1, d]`."""

    shift: jax.Array
    scale: jax.Array
    gate: jax.Array

    def normalized(self, x: jax.Array, epsilon: float) -> jax.Array:
        """Return the input of a layer, from `x [b, n, d]`."""
        return (1 + self.scale) * normalize(x, epsilon) + self.shift


class Modulation(nnx.Module):
    """It is diffusers' Flux2Modulation, and with a bias its AdaLayerNormZero without the norm."""

    def __init__(self, width: int, layers: int, *, use_bias: bool) -> None:
        """`layers` is the number of layers in a block that are modulated apart."""
        self.linear = linear(width, 3 * layers * width, use_bias=use_bias)
        self.layers = layers

    def __call__(self, time: jax.Array) -> tuple[Modulated, ...]:
        """Return the modulation of each layer of a block, from an embedded time `[b, d]`."""
        numbers = project_time(self.linear, jax.nn.silu(time))
        parts = jnp.split(numbers, 3 * self.layers, axis=-1)
        return tuple(Modulated(*parts[3 * layer :][:3]) for layer in range(self.layers))


class FinalNorm(nnx.Module):
    """It is diffusers' AdaLayerNormContinuous."""

    def __init__(self, width: int, epsilon: float, *, use_bias: bool) -> None:
        self.linear = linear(width, 2 * width, use_bias=use_bias)
        self.epsilon = epsilon

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """Normalise `[b, n, d]`, by an embedded time `[b, d]`."""
        scale, shift = jnp.split(self.linear(jax.nn.silu(time))[:, None], 2, axis=-1)
        return normalize(x, self.epsilon) * (1 + scale) + shift
