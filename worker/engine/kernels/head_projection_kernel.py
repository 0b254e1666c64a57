"""Normalise pixels and project them to packed heads on TPU with a kernel written in Pallas.

Input: the pixels of a layer, the weights of its norm and of its projections, whose columns
`HeadPacking` has arranged, perhaps with LoRA of jobs beside them. Output: what
`packed_attention_kernel` reads. It depends on no network.

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
from imagefleet.worker.engine.kernels.head_projection_spec import (
    KERNEL_NAME,
    HeadProjection,
    LowRank,
)

_MAX_PIXELS: Final = 1024
"""A block has at most this many pixels."""


def project_by_kernel(
    x: jax.Array,
    norm: tuple[jax.Array, jax.Array],
    projections: Sequence[HeadProjection],
    scales: Sequence[jax.Array | None],
    *,
    epsilon: float,
) -> list[jax.Array]:
    """Return each projection of the normalised `x [b, n, c]`, on one device.

    `norm` has the scale and the shift of a layer norm, `[c]` each, and `scales` has those of the
    columns of the LoRA of each projection, float32 `[b, k]`.
    """
    batch, length, channels = x.shape
    pixels = largest_block(length, _MAX_PIXELS)
    shapes, blocks = [], []
    for projection in projections:
        rows = projection.matrix.shape[1]
        if projection.is_turned:
            shapes.append((batch, rows, length))
            blocks.append(pl.BlockSpec((1, rows, pixels), lambda b, i: (b, 0, i)))
        else:
            shapes.append((batch, length, rows))
            blocks.append(pl.BlockSpec((1, pixels, rows), lambda b, i: (b, i, 0)))
    weights = [each[None] for each in norm], list(projections)
    of_images = [None if each is None else each[:, None] for each in scales]
    results: list[jax.Array] = pl.pallas_call(
        partial(_project_block, epsilon=epsilon),
        out_shape=[
            jax.ShapeDtypeStruct(shape, x.dtype)  # type: ignore[no-untyped-call]
            for shape in shapes
        ],
        grid=(batch, length // pixels),
        in_specs=[
            pl.BlockSpec((1, pixels, channels), lambda b, i: (b, i, 0)),
            *jax.tree.map(lambda array: pl.BlockSpec(array.shape, lambda b, i: (0, 0)), weights),
            jax.tree.map(
                lambda array: pl.BlockSpec((1, *array.shape[1:]), lambda b, i: (b, 0, 0)), of_images
            ),
        ],
        out_specs=blocks,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=_cost(x, projections),
        name=KERNEL_NAME,
    )(x, *weights, of_images)
    return results


def _cost(x: jax.Array, projections: Sequence[HeadProjection]) -> pl.CostEstimate:
    pixels = x.size // x.shape[-1]
    weights = sum(matrix.size for matrix in jax.tree.leaves(list(projections)))
    width = sum(projection.matrix.shape[1] for projection in projections)
    return pl.CostEstimate(
        flops=2 * pixels * weights,
        bytes_accessed=2 * (x.size + weights + pixels * width),
        transcendentals=0,
    )


def _project_block(
    x: Any,
    norm: Sequence[Any],
    projections: Sequence[HeadProjection],
    scales: Sequence[Any],
    *results: Any,
    epsilon: float,
) -> None:
    scale, shift = norm
    pixels = _normalize(x[0], scale[...], shift[...], epsilon)
    # All hidden values come first, since the products of a projection with LoRA wait for them.
    hidden = [
        None if each.lora is None else _project_down(pixels, each.lora, of_image)
        for each, of_image in zip(projections, scales, strict=True)
    ]
    for projection, added, result in zip(projections, hidden, results, strict=True):
        product = _multiply(pixels, projection.matrix, projection)
        if projection.lora is not None and added is not None:
            product = _multiply(added, projection.lora.up, projection) + product
        result[0] = (projection.scale * product).astype(result.dtype)


def _project_down(pixels: jax.Array, lora: LowRank, scales: Any) -> jax.Array:
    hidden = jnp.dot(pixels, lora.down[...], preferred_element_type=jnp.float32)
    scaled: jax.Array = hidden * scales[0]
    return scaled.astype(pixels.dtype)


def _multiply(pixels: jax.Array, matrix: Any, projection: HeadProjection) -> jax.Array:
    """Return float32 `[n, r]`, or `[r, n]` if the projection is turned."""
    left, right = (matrix[...], pixels) if projection.is_turned else (pixels, matrix[...])
    axes = ((0,), (1,)) if projection.is_turned else ((1,), (0,))
    product: jax.Array = jax.lax.dot_general(
        left, right, (axes, ((), ())), preferred_element_type=jnp.float32
    )
    return product


def _normalize(x: jax.Array, scale: jax.Array, shift: jax.Array, epsilon: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(centred).mean(1, keepdims=True) + epsilon)
    result = centred * inverse * scale.astype(jnp.float32) + shift.astype(jnp.float32)
    return result.astype(x.dtype)
