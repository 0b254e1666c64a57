"""Convolve feature maps to a few channels on TPU with a kernel of our own, written in Pallas.

Input: a map of bfloat16, the group norm with SiLU before the last convolution of a network, its 3x3
kernel and bias. Output: the convolved map. It does not depend on the networks.

In the result of a product the channels take 128 columns of the registers, *lanes*, and a network's
last convolution has three or four. So here the pixels of a row are the lanes, and the weights of
the nine cells of the kernel, eight rows for the channels of each, are the rows of one product. The
sum of the products of three rows of the map, moved by a pixel to either side, is a row of the
result.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.large_convolution_spec import (
    MAX_NARROW,
    NARROW_KERNEL_NAME,
    KernelSpec,
    fill_up,
)
from imagefleet.worker.engine.kernels.row_blocks import RowBlock, image_spec, whole_spec


def convolve_narrow(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    normalize: tuple[jax.Array, jax.Array] | None,
    *,
    spec: KernelSpec,
    rows: int,
) -> jax.Array:
    """Convolve with a 3x3 kernel and padding 1; sums are in float32.

    Args:
        x: `[b, h, w, c]`.
        kernel: `[3, 3, c, o]`.
        bias: `[b, o]`.
        normalize: Scale and shift, float32 `[b, c]` each. The map is then SiLU(x * scale + shift).
        spec: The sizes, of which `is_narrow` is true.
        rows: The rows of a block. They divide the height.

    Returns:
        `[b, h, w, o]` in the dtype of `x`.
    """
    batch, height, width, _ = x.shape
    spare = MAX_NARROW - spec.channels_out
    matrix = _matrix(kernel, spec)
    column = jnp.pad(bias.astype(jnp.float32), ((0, 0), (0, spare)))[:, :, None]
    norm = None if normalize is None else (normalize[0][:, None], normalize[1][:, None])
    norm_spec = image_spec(1, spec.lanes_in)
    result: jax.Array = pl.pallas_call(
        partial(_compute_block, channels=spec.channels_in),
        out_shape=jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (batch, height, spec.channels_out, width), x.dtype
        ),
        grid=(batch, height // rows),
        in_specs=[
            RowBlock.specs(height=height, width=width, lanes=spec.lanes_in, rows=rows),
            whole_spec(matrix),
            image_spec(MAX_NARROW, 1),
            None if norm is None else (norm_spec, norm_spec),
        ],
        out_specs=pl.BlockSpec((1, rows, spec.channels_out, width), lambda n, i: (n, i, 0, 0)),
        scratch_shapes=[pltpu.VMEM((rows + 2, len(matrix), fill_up(width)), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=spec.memory_bytes(rows) * 5 // 4,
        ),
        cost_estimate=pl.CostEstimate(
            flops=batch * spec.flops,
            bytes_accessed=2 * x.size + 2 * batch * height * width * spec.channels_out,
            transcendentals=0 if normalize is None else x.size,
        ),
        name=NARROW_KERNEL_NAME,
    )(RowBlock(x, x, x), matrix, column, norm)
    return result.swapaxes(2, 3)


def _matrix(kernel: jax.Array, spec: KernelSpec) -> jax.Array:
    """Return the weights `[3 * 3 * MAX_NARROW, lanes]`: rows, columns, channels of the result."""
    missing = (spec.lanes_in - spec.channels_in, MAX_NARROW - spec.channels_out)
    filled = jnp.pad(kernel, [(0, 0), (0, 0), *((0, count) for count in missing)])
    return filled.swapaxes(2, 3).reshape(-1, spec.lanes_in)


def _compute_block(
    block: RowBlock,
    matrix: Any,
    bias: Any,
    normalize: tuple[Any, Any] | None,
    out: Any,
    products: Any,
    *,
    channels: int,
) -> None:
    """Compute one block. `products [rows + 2, 9 * MAX_NARROW, columns]` are those of the map's
    rows; the columns without a pixel are not written."""
    _, rows, channels_out, width = out.shape

    def multiply(row: jax.Array, _: None) -> None:
        pixels = block.read(row, normalize, channels).astype(matrix.dtype)  # [w, lanes]
        products[row, :, :width] = jax.lax.dot_general(
            matrix[...], pixels, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def write(row: jax.Array, _: None) -> None:
        sums = _sum_cells(products, row, width) + bias[0]
        out[0, row] = sums[:channels_out, :width].astype(out.dtype)

    jax.lax.fori_loop(0, rows + 2, multiply, None)
    jax.lax.fori_loop(0, rows, write, None)


def _sum_cells(products: Any, row: jax.Array, width: int) -> jax.Array:
    """Return float32 `[MAX_NARROW, columns]`: each cell of the kernel adds the product of its
    pixel."""
    columns = [
        sum(products[row + above, _cell(above, column)] for above in range(3))
        for column in range(3)
    ]
    pixel = jax.lax.broadcasted_iota(jnp.int32, columns[0].shape, 1)
    left = jnp.where(pixel == 0, 0.0, pltpu.roll(columns[0], 1, 1))
    right = jnp.where(pixel == width - 1, 0.0, pltpu.roll(columns[2], products.shape[2] - 1, 1))
    result: jax.Array = left + columns[1] + right
    return result


def _cell(row: int, column: int) -> slice:
    first = (3 * row + column) * MAX_NARROW
    return slice(first, first + MAX_NARROW)
