"""Compute convolutions with the fastest implementation of the device.

Input: a feature map and a kernel, as `flax.nnx.Conv` passes them. Output: the convolved map. It
does not depend on the networks, and they do not depend on which method ran.

On CPU and GPU the convolutions are XLA's. On TPU some are sums of matrix products; the choice
follows the estimates of the TPU compiler, which a test asks again. docs/tpu.md has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, Final

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.kernels.large_convolution import MAX_FEW_MAPS, find_kernel
from imagefleet.worker.engine.placement.mesh import (
    images_on_device,
    is_bfloat16_on_tpu,
    target_device,
)

_MAX_SUM_BYTES: Final = dict.fromkeys(
    ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e"), 48 * 2**20
)
"""By kind of device (v5e and v6e have two names), it has the bytes of a map in float32 up to which
its sums stay on the chip, so that adding to them nine times moves nothing to and from the main
memory. Both have 128 MiB there, for the map and the weights too. Other devices run XLA's
convolutions."""
_MIN_CHANNELS: Final = 64
"""It is half of the columns of a TPU's matrix unit. The products of narrower maps would leave more
of it empty: these are the first and the last convolution of a network, with 3 to 8 channels."""

_MIN_PIXELS: Final = 512
"""With fewer pixels, reading the weights takes most of the time: for 2 maps of 8x8x1280 the
products take 1.9 times the cycles of XLA's convolutions."""

_MIN_PHASE_PIXELS: Final = 64
"""The map that is upsampled needs this many pixels. With fewer, adding the weights for the phases
takes longer than the products that are saved."""
_SAME: Final = ((1, 1), (1, 1))
_LAYOUT: Final = ("NHWC", "HWIO", "NHWC")


class Method(StrEnum):
    """The method says how a convolution is computed."""

    XLA = "xla"
    """It is XLA's convolution."""
    SHIFTED = "shifted"
    """It is the sum of nine matrix products, one for each cell of the kernel, over the shifted map.
    On TPU, XLA's convolution first rearranges a map of a small batch and afterwards restores it. On
    v5e this takes two thirds of its time; the products need none of it. From 8 maps on, XLA's
    convolution rearranges nothing and is the faster one: of 64x64x320 the products take 2.8 times
    its cycles."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionSpec:
    """It has the sizes of a convolution on one device, which determine its method."""

    maps: int
    """It is the number of maps in the batch."""
    pixels: int
    """It is the number of pixels of the result, over the batch."""
    channels_in: int
    channels_out: int
    is_same_3x3: bool
    """Whether the kernel is 3 by 3, and the result has the map's height and width."""

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of the result in float32."""
        return 4 * self.pixels * self.channels_out


def choose_method(device_kind: str, spec: ConvolutionSpec) -> Method:
    """Choose the method for a kind of device, as JAX names it."""
    wide = min(spec.channels_in, spec.channels_out) >= _MIN_CHANNELS
    fits = spec.sum_bytes <= _MAX_SUM_BYTES.get(device_kind, 0)
    few, large = spec.maps <= MAX_FEW_MAPS, spec.pixels >= _MIN_PIXELS
    return Method.SHIFTED if spec.is_same_3x3 and wide and few and large and fits else Method.XLA


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    method: Method | None = None,
    **options: Any,
) -> jax.Array:
    """Convolve `x [b, h, w, c]` with `kernel [i, j, c, o]`.

    Args:
        x: The feature map.
        kernel: The weights.
        strides: Of the rows and columns.
        padding: Zeros before and after the rows and columns.
        method: None: `choose_method` for the device that the program is for, `target_device`.
        options: Further arguments of `jax.lax.conv_general_dilated`, which `flax.nnx.Conv` passes.
            No network here uses dilation or feature groups.

    Returns:
        `[b, h', w', o]` in the dtype of `x`.
    """
    if method is None:
        method = choose_method(target_device().device_kind, _spec(x, kernel, strides, padding))
    if method is Method.SHIFTED:
        return _sum_of_products(x, kernel)
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)


def upsample(x: jax.Array) -> jax.Array:
    """Repeat each pixel of `x [b, h, w, c]` in a square of 2x2: its nearest neighbours.

    A TPU's registers hold columns and channels, so that it takes long to repeat a column. A product
    with ones and zeros takes 0.05 million cycles on v5e where the repetition takes 0.45, for 2 maps
    of 64x64x640.
    """
    tall = jnp.repeat(x, 2, axis=1)
    if not is_bfloat16_on_tpu(x):
        return jnp.repeat(tall, 2, axis=2)
    columns = jnp.arange(x.shape[2])
    repeats = columns.repeat(2)[:, None] == columns  # [2w, w]
    return jnp.einsum("vw,bhwc->bhvc", repeats.astype(x.dtype), tall)


def convolve_upsampled(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, *, in_phases: bool | None = None
) -> FeatureMap:
    """Upsample `x [b, h, w, c]` by 2 to its nearest neighbours, and convolve with padding 1.

    Each pixel of a 2x2 square of the result reads other pixels of `x` more than once. So the even
    and odd rows and columns, four phases, are convolutions of `x` with kernels of 2x2: 16 products
    a pixel of `x` instead of 36, and the upsampled map is never stored.

    Args:
        x: The feature map.
        kernel: `[3, 3, c, o]`.
        bias: `[o]`.
        in_phases: Whether to compute the phases by XLA. None: on CPU, where maps of at least
            `_MIN_PHASE_PIXELS` take 0.6 of the time. On TPU the kernel for large maps computes
            them; by XLA's convolutions they take as long as the upsampled map.

    Returns:
        `[b, 2h, 2w, o]` in the dtype of `x`.
    """
    batch, height, width, _ = x.shape
    if in_phases is None and (compute := find_kernel(x, kernel, upsamples=True)) is not None:
        return compute(x, phase_kernels(kernel), bias)
    if in_phases is None:
        is_large = height * width >= _MIN_PHASE_PIXELS
        in_phases = is_large and target_device().platform == "cpu"
    if not in_phases:
        result = convolve(upsample(x), kernel, (1, 1), _SAME, dimension_numbers=_LAYOUT)
        return FeatureMap(result + bias)
    kernels = phase_kernels(kernel)
    rows = [
        jnp.stack([_phase(x, kernels[row, column], row, column) for column in range(2)], axis=3)
        for row in range(2)
    ]
    return FeatureMap(jnp.stack(rows, axis=2).reshape(batch, 2 * height, 2 * width, -1) + bias)


def _phase(x: jax.Array, kernel: jax.Array, row: int, column: int) -> jax.Array:
    padding = ((1 - row, row), (1 - column, column))
    return convolve(x, kernel, (1, 1), padding, dimension_numbers=_LAYOUT)


def phase_kernels(kernel: jax.Array) -> jax.Array:
    """Return the kernels of the four phases, `[row phase, column phase, 2, 2, c, o]`.

    For an even row, one row of the 3x3 kernel is for the row of `x` above, and two are for its own
    row of `x`. For an odd row, two are for its own row, and one is for the row below. The weights
    of two such rows are added up in float32.
    """
    rows = _add_taps(kernel.astype(jnp.float32), axis=0)  # [row phase, 2, 3, c, o]
    return _add_taps(rows, axis=2).swapaxes(0, 1).astype(kernel.dtype)


def _add_taps(kernel: jax.Array, axis: int) -> jax.Array:
    """Turn an axis of 3 rows into `[phase, 2]`; the phase comes first of all axes."""
    first, middle, last = jnp.split(kernel, 3, axis)
    even = jnp.concatenate([first, middle + last], axis)
    odd = jnp.concatenate([first + middle, last], axis)
    return jnp.stack([even, odd])


def _spec(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Sequence[tuple[int, int]]
) -> ConvolutionSpec:
    _, height, width, channels = x.shape
    maps = images_on_device(x)
    is_same = tuple(strides) == (1, 1) and [*map(tuple, padding)] == [(1, 1), (1, 1)]
    return ConvolutionSpec(
        maps=maps,
        pixels=height * width * maps,
        channels_in=channels,
        channels_out=kernel.shape[3],
        is_same_3x3=is_same and kernel.shape[:2] == (3, 3),
    )


def _sum_of_products(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve with a 3x3 kernel and padding 1. The sums are in float32."""
    zero = jnp.zeros((), x.dtype)
    sums = jnp.zeros((), jnp.float32)
    for row, column in product(range(3), range(3)):
        # Padding by -1 drops the last row or column. If this were a slice of a padded map, the
        # compiler would store each shifted map before its product.
        shifts = ((0, 0, 0), (1 - row, row - 1, 0), (1 - column, column - 1, 0), (0, 0, 0))
        shifted = jax.lax.pad(x, zero, shifts)
        sums += jnp.einsum(
            "bhwc,co->bhwo", shifted, kernel[row, column], preferred_element_type=jnp.float32
        )
    return sums.astype(x.dtype)
