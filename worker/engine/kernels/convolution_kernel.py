"""Convolve feature maps on TPU with a kernel of our own, written in Pallas.

Input: a map of bfloat16, a 3x3 kernel, and what a network does just before and after: a group norm
with SiLU, a bias, a residual. Output: the convolved map, and the sums of its values and of their
squares for the next group norm. It does not depend on the networks.

Rows of the map are split into blocks. For each block, and one row above and below it, the kernel
computes SiLU(x * scale + shift) in float32 and stores the rows three times side by side in the
memory of the core: shifted by a column to either side, and as they are. Products over these
`3 * channels` columns, one for each row of the 3x3 kernel, are then the convolution.

Channels take the registers' columns, *lanes*, in groups of 128: 320 channels take 384 lanes. Blocks
are as wide as the lanes. A lane without a channel has undefined content when it is read, so that
zeros replace it, and its content is dropped when it is written.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from imagefleet.worker.engine.kernels.large_convolution_spec import KERNEL_NAME, KernelSpec
from imagefleet.worker.engine.kernels.row_blocks import (
    RowBlock,
    image_spec,
    rows_spec,
    whole_spec,
)

_PRODUCT_PIXELS: Final = 512
"""A product has this many pixels, where the block is that large. With fewer, loading the weights
into the matrix unit would take longer than the product."""


def convolve_by_kernel(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    *,
    spec: KernelSpec,
    rows: int,
    normalize: tuple[jax.Array, jax.Array] | None = None,
    residual: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Convolve with a 3x3 kernel and padding 1; sums are in float32.

    Args:
        x: `[b, h, w, c]`.
        kernel: `[3, 3, c, o]`, or that of `phase_kernels`, `[2, 2, 2, 2, c, o]`, which upsamples.
        bias: `[b, o]`: one for each image.
        spec: The sizes.
        rows: The rows of a block. They divide the height.
        normalize: Scale and shift, float32 `[b, c]` each. The map is then SiLU(x * scale + shift).
        residual: `[b, h, w, o]`, which is added. It cannot be added to an upsampled map.

    Returns:
        `[b, h, w, o]`, or `[b, 2h, 2w, o]` of an upsampled map, in the dtype of `x`; and float32
        `[b, blocks, 2, o]`, the sums over the pixels of a block of these values and their squares.
    """
    batch, height, width, _ = x.shape
    factor = 2 if spec.upsamples else 1
    operands = _Operands(
        block=RowBlock(x, x, x),
        kernel=_matrices(kernel, spec),
        bias=bias.astype(jnp.float32)[:, None],
        normalize=None if normalize is None else (normalize[0][:, None], normalize[1][:, None]),
        residual=residual,
    )
    blocks = height // rows
    result: tuple[jax.Array, jax.Array] = pl.pallas_call(
        partial(
            _compute_block,
            rows=rows,
            group=_product_rows(rows, width),
            channels=spec.channels_in,
        ),
        out_shape=(
            _array((batch, factor * height, factor * width, spec.channels_out), x.dtype),
            _array((batch, blocks, 2, spec.channels_out), jnp.float32),
        ),
        grid=(batch, blocks),
        in_specs=[_block_specs(operands, spec, rows)],
        out_specs=(
            rows_spec(factor * rows, factor * width, spec.lanes_out),
            pl.BlockSpec((1, 1, 2, spec.lanes_out), lambda n, i: (n, i, 0, 0)),
        ),
        scratch_shapes=[pltpu.VMEM((rows + 2, width, 3 * spec.lanes_in), x.dtype)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=spec.memory_bytes(rows) * 5 // 4,
        ),
        cost_estimate=pl.CostEstimate(
            flops=batch * spec.flops,
            bytes_accessed=2 * x.size + 2 * batch * height * width * spec.channels_out * factor**2,
            transcendentals=0 if normalize is None else x.size,
        ),
        name=KERNEL_NAME,
    )(operands)
    return result


def _array(shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _matrices(kernel: jax.Array, spec: KernelSpec) -> jax.Array:
    """Return the weights as the matrices of the products, with zeros in lanes without a channel."""
    missing = (spec.lanes_in - spec.channels_in, spec.lanes_out - spec.channels_out)
    before = [(0, 0)] * (kernel.ndim - 2)
    filled = jnp.pad(kernel, [*before, *((0, count) for count in missing)])
    taps = (2, 2, 2, 2) if spec.upsamples else (3, 3)
    return filled.reshape(*taps[:-1], taps[-1] * spec.lanes_in, spec.lanes_out)


def _product_rows(rows: int, width: int) -> int:
    """Return the rows of a product: a divisor of the `rows` of a block."""
    wanted = max(1, _PRODUCT_PIXELS // width)
    return max(count for count in range(1, min(rows, wanted) + 1) if rows % count == 0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class _Operands:
    """It has the operands of the kernel: arrays, the blocks of them, or how they are split."""

    block: RowBlock
    kernel: Any
    bias: Any
    normalize: tuple[Any, Any] | None
    """It is scale and shift."""
    residual: Any


def _block_specs(operands: _Operands, spec: KernelSpec, rows: int) -> _Operands:
    norm = image_spec(1, spec.lanes_in)
    return _Operands(
        block=RowBlock.specs(height=spec.height, width=spec.width, lanes=spec.lanes_in, rows=rows),
        kernel=whole_spec(operands.kernel),
        bias=image_spec(1, spec.lanes_out),
        normalize=None if operands.normalize is None else (norm, norm),
        residual=(
            None if operands.residual is None else rows_spec(rows, spec.width, spec.lanes_out)
        ),
    )


@dataclass(frozen=True)
class _Results:
    """It has the blocks that the kernel writes."""

    values: Any
    """It is `[1, rows, w, lanes]` of the map."""
    sums: Any
    """It is float32 `[1, 1, 2, lanes]`: of the values and of their squares."""

    def add_up(self, values: jax.Array) -> None:
        """Add float32 `values [n, lanes]`, as they are read from the map again, to the sums."""
        for row, terms in enumerate((values, jnp.square(values))):
            self.sums[0, 0, row] += terms.sum(axis=0)


def _compute_block(
    operands: _Operands,
    values: Any,
    sums: Any,
    staged: Any,
    *,
    rows: int,
    group: int,
    channels: int,
) -> None:
    """Compute one block. `staged [rows + 2, w, 3 lanes]` has the map as the products take it."""
    multiply = _add_phases if operands.kernel.ndim == 5 else _add_products
    results = _Results(values, sums)

    def stage(row: jax.Array, _: None) -> None:
        _stage_row(operands, staged, row, channels)

    def compute_group(index: jax.Array, _: None) -> None:
        multiply(operands, staged, results, index * group, group)

    sums[...] = jnp.zeros_like(sums)
    jax.lax.fori_loop(0, rows + 2, stage, None)
    jax.lax.fori_loop(0, rows // group, compute_group, None)


def _stage_row(operands: _Operands, staged: Any, row: jax.Array, channels: int) -> None:
    """Store a row of the block three times. Row 0 is the one above the block."""
    x = operands.block.read(row, operands.normalize, channels)
    width, lanes = x.shape
    column = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    left = jnp.where(column == 0, 0.0, pltpu.roll(x, 1, 0))
    right = jnp.where(column == width - 1, 0.0, pltpu.roll(x, width - 1, 0))
    for part, shifted in enumerate((left, x, right)):
        columns = slice(part * lanes, (part + 1) * lanes)
        staged[row, :, columns] = shifted.astype(staged.dtype)


def _sum_products(
    staged: Any, first: jax.Array, count: int, columns: slice, kernels: list[Any]
) -> jax.Array:
    """Add up the products of `count` rows, from row `first` on, with the first of `kernels`, of as
    many rows from `first + 1` on with the second, and so on. Returns float32 `[count * w, o]`."""
    sums: jax.Array | None = None
    for row, kernel in enumerate(kernels):
        taken = staged[pl.ds(first + row, count), :, columns]
        flat = taken.reshape(-1, taken.shape[2])
        product = jnp.dot(flat, kernel, preferred_element_type=jnp.float32)
        sums = product if sums is None else sums + product
    assert sums is not None
    return sums


def _add_products(
    operands: _Operands, staged: Any, results: _Results, first: jax.Array, count: int
) -> None:
    kernels = [operands.kernel[row] for row in range(3)]
    sums = _sum_products(staged, first, count, slice(None), kernels) + operands.bias[0]
    if operands.residual is not None:
        residual = operands.residual[0, pl.ds(first, count)].reshape(sums.shape)
        sums += residual.astype(jnp.float32)
    rounded = sums.astype(results.values.dtype)
    results.values[0, pl.ds(first, count)] = rounded.reshape(count, -1, sums.shape[1])
    results.add_up(rounded.astype(jnp.float32))


def _add_phases(
    operands: _Operands, staged: Any, results: _Results, first: jax.Array, count: int
) -> None:
    """Compute the rows and columns of an upsampled map: even ones (phase 0) and odd ones."""
    lanes, dtype = staged.shape[2] // 3, results.values.dtype
    for row_phase in range(2):
        phases = []
        for phase in range(2):
            kernels = [operands.kernel[row_phase, phase, tap] for tap in range(2)]
            columns = slice(phase * lanes, (phase + 2) * lanes)
            sums = _sum_products(staged, first + row_phase, count, columns, kernels)
            phases.append((sums + operands.bias[0]).astype(dtype).astype(jnp.float32))
            results.add_up(phases[-1])
        pixels = _interleave(phases[0], phases[1], dtype)
        pixels = pixels.reshape(count, -1, pixels.shape[1])
        for row in range(count):
            results.values[0, 2 * (first + row) + row_phase] = pixels[row]


def _interleave(even: jax.Array, odd: jax.Array, dtype: Any) -> jax.Array:
    """Interleave the rows of two arrays of float32, which bfloat16 can represent, in bfloat16.

    A register has the pixels 2n and 2n + 1 of a channel in the halves of one word.
    """
    low, high = (jax.lax.bitcast_convert_type(x, jnp.int32) for x in (even, odd))
    words = jax.lax.shift_right_logical(low, 16) | high
    return pltpu.bitcast(words, dtype)
