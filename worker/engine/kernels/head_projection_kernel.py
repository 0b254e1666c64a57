"""Normalise pixels and project them to packed heads on TPU with a kernel written in Pallas.

Input: the pixels of a layer, the weights of its norm and of its projections, whose columns
`HeadPacking` has arranged. Output: what `packed_attention_kernel` reads. It depends on no network.

XLA takes two to three times as long as the products need: it reads the pixels once for the sums of
the norm and once for each projection, and writes each result in bfloat16 slowly.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.attention import largest_block
from imagefleet.worker.engine.kernels.head_projection_spec import KERNEL_NAME, HeadProjection

_MAX_PIXELS: Final = 1024
"""A block has at most this many pixels."""


def project_by_kernel(
    x: jax.Array,
    norm: tuple[jax.Array, jax.Array],
    projections: Sequence[HeadProjection],
    *,
    epsilon: float,
) -> list[jax.Array]:
    """Return each projection of the normalised `x [b, n, c]`, on one device.

    `norm` has the scale and the shift of a layer norm, `[c]` each.
    """
    batch, length, channels = x.shape
    pixels = largest_block(length, _MAX_PIXELS)
    of_channels = pl.BlockSpec((1, channels), lambda b, i: (0, 0))
    shapes, blocks = [], []
    for projection in projections:
        rows = projection.matrix.shape[1]
        if projection.is_turned:
            shapes.append((batch, rows, length))
            blocks.append(pl.BlockSpec((1, rows, pixels), lambda b, i: (b, 0, i)))
        else:
            shapes.append((batch, length, rows))
            blocks.append(pl.BlockSpec((1, pixels, rows), lambda b, i: (b, i, 0)))
    width = sum(projection.matrix.shape[1] for projection in projections)
    results: list[jax.Array] = pl.pallas_call(
        partial(_project_block, projections=projections, epsilon=epsilon),
        out_shape=[
            jax.ShapeDtypeStruct(shape, x.dtype)  # type: ignore[no-untyped-call]
            for shape in shapes
        ],
        grid=(batch, length // pixels),
        in_specs=[
            pl.BlockSpec((1, pixels, channels), lambda b, i: (b, i, 0)),
            of_channels,
            of_channels,
            *(pl.BlockSpec(each.matrix.shape, lambda b, i: (0, 0)) for each in projections),
        ],
        out_specs=blocks,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=2 * x.size * width,
            bytes_accessed=2 * (x.size + x.size // channels * width),
            transcendentals=0,
        ),
        name=KERNEL_NAME,
    )(x, *(each[None] for each in norm), *(each.matrix for each in projections))
    return results


def _project_block(
    x: Any,
    scale: Any,
    shift: Any,
    *refs: Any,
    projections: Sequence[HeadProjection],
    epsilon: float,
) -> None:
    matrices, results = refs[: len(projections)], refs[len(projections) :]
    pixels = _normalize(x[0], scale[...], shift[...], epsilon)
    for projection, matrix, result in zip(projections, matrices, results, strict=True):
        left, right = (matrix[...], pixels) if projection.is_turned else (pixels, matrix[...])
        axes = ((0,), (1,)) if projection.is_turned else ((1,), (0,))
        product = jax.lax.dot_general(
            left, right, (axes, ((), ())), preferred_element_type=jnp.float32
        )
        result[0] = (projection.scale * product).astype(result.dtype)


def _normalize(x: jax.Array, scale: jax.Array, shift: jax.Array, epsilon: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(centred).mean(1, keepdims=True) + epsilon)
    result = centred * inverse * scale.astype(jnp.float32) + shift.astype(jnp.float32)
    return result.astype(x.dtype)
