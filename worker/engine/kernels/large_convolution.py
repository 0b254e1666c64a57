"""Choose which convolutions a TPU computes with the kernels of `convolution_kernel` and, where the
result has a few channels, `narrow_convolution_kernel`, and run them.

Input: a feature map, the weights, and what a network does just before and after. Output: the
convolved map. Layers and weights are the same as for every other device.

The kernels follow the estimates of the TPU compiler (docs/tpu.md). No TPU has run them. Tests
compare them with the formula in Pallas' interpreter.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from imagefleet.worker.engine.kernels.feature_map import FeatureMap, PixelMeans
from imagefleet.worker.engine.kernels.large_convolution_spec import KernelSpec
from imagefleet.worker.engine.placement.mesh import (
    compute_on_each_device,
    devices_per_copy,
    images_on_device,
    target_device,
)

_MEMORY_BYTES: Final = {
    "TPU v4": 12 * 2**20,
    "TPU v5 lite": 40 * 2**20,
    "TPU v5e": 40 * 2**20,
    "TPU v5": 40 * 2**20,
    "TPU v5p": 40 * 2**20,
    "TPU v6 lite": 24 * 2**20,
    "TPU v6e": 24 * 2**20,
}
"""By kind of device, the kernel may use this many bytes of a core's memory. v4 has 16 MiB, v5p 64
and the others 128. What one kernel uses is kept free in the whole program, but on v6e the program
needs that memory: with 40 MiB its transformers of 1,280 channels move their widest arrays to the
main memory. The compiler of v2 and v3 refuses products of bfloat16 in kernels."""
_MIN_PIXELS: Final = 128 * 128
"""The result has at least this many pixels."""
_MIN_PIXELS_OF_FEW: Final = {
    "TPU v4": 32 * 32,
    "TPU v5": 32 * 32,
    "TPU v5p": 32 * 32,
    "TPU v6 lite": 32 * 32,
    "TPU v6e": 32 * 32,
}
"""It replaces `_MIN_PIXELS` for up to `MAX_FEW_MAPS` maps, by kind of device. The kernel takes 0.5
of the cycles of XLA's convolutions, and on v6e 0.6 of those of products of whole maps
(`convolution`). On v5e these products are about as fast as the kernel, for which XLA fills up
weights of 320 channels."""
_MIN_NARROW_PIXELS: Final = 64 * 64
"""It replaces both where the result has a few channels, for any number of maps. XLA moves columns
of a few such maps into the batch: for 2 maps of 64x64x320 it takes 420,000 cycles on v5e with the
norm, where the kernel takes 25,000, and the sums of the norm 45,000."""
MAX_FEW_MAPS: Final = 4
"""From 8 maps on a device, XLA's convolution does not need to move columns into the batch."""
_MIN_CHANNELS: Final = 64
"""The map that is read has at least this many channels. Products of fewer would leave more than
half of the matrix unit empty: these are the first convolutions of the networks, with 3 to 9
channels."""
_PACKED_ROWS: Final = 16
"""A register has this many rows of bfloat16. The width of a map must be a multiple of it."""
_MAX_BLOCK_ROWS: Final = 8
"""A block has at most this many rows. The two rows beside a block are read and normalised twice."""


def has_kernel(device_kind: str, dtype: DTypeLike, model: int) -> bool:
    """Return whether large maps get the kernel.

    Args:
        device_kind: As JAX names it.
        dtype: Of the maps.
        model: The number of devices that share one copy of the weights.
    """
    return device_kind in _MEMORY_BYTES and dtype == jnp.bfloat16 and model == 1


def block_rows(device_kind: str, spec: KernelSpec, maps: int) -> int | None:
    """Return the rows of a block. None: this kind of device does not use the kernel.

    Args:
        device_kind: As JAX names it.
        spec: The sizes of a convolution of bfloat16.
        maps: The number of maps of this size that a device has.
    """
    few_pixels = _MIN_PIXELS_OF_FEW.get(device_kind, _MIN_PIXELS)
    min_pixels = few_pixels if maps <= MAX_FEW_MAPS else _MIN_PIXELS
    if spec.is_narrow:
        min_pixels = min(min_pixels, _MIN_NARROW_PIXELS)
    is_large = spec.height * spec.width * (4 if spec.upsamples else 1) >= min_pixels
    if not is_large or spec.channels_in < _MIN_CHANNELS or spec.width % _PACKED_ROWS:
        return None
    limit = _MEMORY_BYTES.get(device_kind, 0)
    candidates = range(_MAX_BLOCK_ROWS, 1, -1)
    fitting = (rows for rows in candidates if spec.height % rows == 0)
    return next((rows for rows in fitting if spec.memory_bytes(rows) <= limit), None)


def find_kernel(
    x: jax.Array, kernel: jax.Array, *, upsamples: bool = False, has_residual: bool = False
) -> Callable[..., FeatureMap] | None:
    """Return the function that convolves such a map on the device of the program being traced.

    Args:
        x: `[b, h, w, c]`.
        kernel: `[3, 3, c, o]`, of a convolution with padding 1 and stride 1.
        upsamples: Whether the map is upsampled by 2 first.
        has_residual: Whether a map is added to the result.

    Returns:
        A function with the arguments of `convolve_large` without `spec` and `rows`. None: the
        device does not use the kernel for this map.
    """
    device_kind = target_device().device_kind
    if not has_kernel(device_kind, x.dtype, devices_per_copy()):
        return None
    _, height, width, channels = x.shape
    spec = KernelSpec(
        height=height,
        width=width,
        channels_in=channels,
        channels_out=kernel.shape[-1],
        upsamples=upsamples,
        has_residual=has_residual,
    )
    rows = block_rows(device_kind, spec, images_on_device(x))
    return None if rows is None else partial(convolve_large, spec=spec, rows=rows)


def convolve_large(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    *,
    spec: KernelSpec,
    rows: int,
    normalize: tuple[jax.Array, jax.Array] | None = None,
    residual: jax.Array | None = None,
) -> FeatureMap:
    """Run the kernel on each device, with the images that it has.

    The arguments are those of `convolution_kernel.convolve_by_kernel`; `bias` may also be `[o]`.
    """
    from imagefleet.worker.engine.kernels.convolution_kernel import convolve_by_kernel
    from imagefleet.worker.engine.kernels.narrow_convolution_kernel import convolve_narrow

    bias = jnp.broadcast_to(bias, (len(x), kernel.shape[-1]))
    if spec.is_narrow:
        compute_narrow = partial(convolve_narrow, spec=spec, rows=rows)
        return FeatureMap(
            compute_on_each_device(compute_narrow, x, kernel, bias, normalize, whole=[1])
        )

    def compute(
        x: Any, kernel: Any, bias: Any, normalize: Any, residual: Any
    ) -> tuple[jax.Array, jax.Array]:
        return convolve_by_kernel(
            x, kernel, bias, spec=spec, rows=rows, normalize=normalize, residual=residual
        )

    operands = (x, kernel, bias, normalize, residual)
    values, sums = compute_on_each_device(compute, *operands, whole=[1])
    means = sums.sum(axis=1) / (values.shape[1] * values.shape[2])  # [b, 2, o]
    return FeatureMap(values, PixelMeans(means[:, 0], means[:, 1]))
