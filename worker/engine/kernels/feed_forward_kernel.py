"""Compute the feed-forward part of a transformer block on TPU with a kernel written in Pallas.

Input: the pixels of a layer and its weights. Output: the pixels with the result added. The kernel
depends on no network.

The first layer's values and gates are together eight times as wide as the pixels. Writing them to
the main memory would take as long as the products or longer. So the kernel takes a block of pixels
and, one after the other, chunks of the hidden values: it computes a chunk, and adds its product
with the weights of the second layer to float32 sums.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.feed_forward_spec import (
    KERNEL_NAME,
    Activation,
    FeedForwardWeights,
    block_pixels,
    chunk_width,
)

_MEMORY_BYTES: Final = 40 * 2**20
"""The kernel may use so much of the core's memory. The compiler refuses blocks of 1024 pixels of
1280 channels with 24 MiB."""


def feed_forward_by_kernel(
    x: jax.Array, weights: FeedForwardWeights, *, epsilon: float, activation: Activation
) -> jax.Array:
    """Compute on one device. The arguments are those of `feed_forward.add_feed_forward`."""
    *shape, channels = x.shape
    pixels = x.reshape(-1, channels)
    hidden = weights.proj_out.shape[0]
    rows, chunk = block_pixels(len(pixels), channels), chunk_width(hidden)
    scale, shift, bias_in, bias_out = (
        each.astype(jnp.float32)[None]
        for each in (weights.scale, weights.shift, weights.bias_in, weights.bias_out)
    )
    operands = _Operands(
        x=pixels,
        scale=scale,
        shift=shift,
        to_values=weights.proj_in,
        to_gates=weights.proj_in,
        bias_of_values=bias_in,
        bias_of_gates=bias_in,
        proj_out=weights.proj_out,
        bias_out=bias_out,
    )
    specs = _block_specs(rows, channels, chunk, first_gate=hidden // chunk)
    result: jax.Array = pl.pallas_call(
        partial(_compute_chunk, epsilon=epsilon, activation=activation),
        out_shape=jax.ShapeDtypeStruct(pixels.shape, x.dtype),  # type: ignore[no-untyped-call]
        grid=(len(pixels) // rows, hidden // chunk),
        in_specs=[specs],
        out_specs=specs.x,
        scratch_shapes=[
            pltpu.VMEM((rows, channels), x.dtype),
            pltpu.VMEM((rows, chunk), x.dtype),
            pltpu.VMEM((rows, channels), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_MEMORY_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=6 * pixels.size * hidden,
            bytes_accessed=4 * pixels.size + 6 * channels * hidden * len(pixels) // rows,
            transcendentals=len(pixels) * hidden,
        ),
        name=KERNEL_NAME,
    )(operands)
    return result.reshape(*shape, channels)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class _Operands:
    """It has the operands of the kernel: arrays, the blocks of them, or how they are split."""

    x: Any
    scale: Any
    shift: Any
    to_values: Any
    """It is the first half of the columns of `proj_in`, which makes the values."""
    to_gates: Any
    """It is the second half, which makes the gates."""
    bias_of_values: Any
    bias_of_gates: Any
    proj_out: Any
    bias_out: Any


def _block_specs(rows: int, channels: int, chunk: int, *, first_gate: int) -> _Operands:
    """Return how the operands are split into blocks `i` of pixels and chunks `j`."""
    of_channels = pl.BlockSpec((1, channels), lambda i, j: (0, 0))
    return _Operands(
        x=pl.BlockSpec((rows, channels), lambda i, j: (i, 0)),
        scale=of_channels,
        shift=of_channels,
        to_values=pl.BlockSpec((channels, chunk), lambda i, j: (0, j)),
        to_gates=pl.BlockSpec((channels, chunk), lambda i, j: (0, j + first_gate)),
        bias_of_values=pl.BlockSpec((1, chunk), lambda i, j: (0, j)),
        bias_of_gates=pl.BlockSpec((1, chunk), lambda i, j: (0, j + first_gate)),
        proj_out=pl.BlockSpec((chunk, channels), lambda i, j: (j, 0)),
        bias_out=of_channels,
    )


def _compute_chunk(
    operands: _Operands,
    out: Any,
    normalized: Any,
    hidden: Any,
    sums: Any,
    *,
    epsilon: float,
    activation: Activation,
) -> None:
    """Add one chunk of the hidden values to the sums of one block of pixels."""

    @pl.when(pl.program_id(1) == 0)
    def normalize() -> None:
        wide = operands.x[...].astype(jnp.float32)
        mean = wide.mean(1, keepdims=True)
        centred = wide - mean
        variance = jnp.square(centred).mean(1, keepdims=True)
        result = centred * jax.lax.rsqrt(variance + epsilon) * operands.scale[...]
        normalized[...] = (result + operands.shift[...]).astype(normalized.dtype)
        sums[...] = wide + operands.bias_out[...]

    x = normalized[...]
    value = _multiply(x, operands.to_values[...]) + operands.bias_of_values[...]
    gate = _multiply(x, operands.to_gates[...]) + operands.bias_of_gates[...]
    hidden[...] = (value * activation(gate)).astype(hidden.dtype)
    sums[...] += _multiply(hidden[...], operands.proj_out[...])

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def write() -> None:
        out[...] = sums[...].astype(out.dtype)


def _multiply(x: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.dot(x, weights, preferred_element_type=jnp.float32)
