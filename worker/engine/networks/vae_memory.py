"""Estimate the memory that the autoencoder's decoder needs on a device besides the weights.

Input: a config, the size of an image, a workload. Output: bytes. It asks no device.
"""

from typing import Final

from imagefleet.worker.engine.kernels.large_convolution import block_rows, has_kernel
from imagefleet.worker.engine.kernels.large_convolution_spec import KernelSpec
from imagefleet.worker.engine.networks.vae import VaeConfig
from imagefleet.worker.engine.placement.memory_check import Workload

_MAPS: Final = {"cpu": 6.0, "gpu": 6.0, "tpu": 10.5}
"""The decoder holds this many full-size maps at once, as wide as its first level. On CPU this is
measured with XLA's memory analysis of Stable Diffusion 1.4 at 512x512: 768 MiB. For TPUs
docs/tpu.md has what their compiler takes."""
_MAPS_BY_KERNEL: Final = 3.3
"""It is the number of maps on TPUs whose kernel for large maps computes the last upsampling."""
_FIXED_BYTES: Final = {"cpu": 0, "gpu": 0, "tpu": 250_000_000}
"""The decoder needs this many bytes whatever the size of the image. On TPUs they are mostly its
code."""


def decoder_bytes(config: VaeConfig, height: int, width: int, workload: Workload) -> int:
    """Estimate the bytes that a device needs to decode one image, besides the weights.

    Args:
        config: Of the autoencoder.
        height: Pixels.
        width: Pixels.
        workload: Of the device.
    """
    dtype, platform = workload.dtype, workload.platform
    one_map = height * width * config.block_out_channels[0] * dtype.itemsize
    by_kernel = has_kernel(workload.device_kind, dtype, workload.model)
    if by_kernel and _upsamples_by_kernel(config, height, width, workload.device_kind):
        maps = _MAPS_BY_KERNEL
    else:
        maps = _MAPS[platform]
    return int(maps * one_map) + _FIXED_BYTES[platform]


def _upsamples_by_kernel(config: VaeConfig, height: int, width: int, device_kind: str) -> bool:
    """Return whether the kernel computes the decoder's last upsampling, the largest one."""
    channels = config.block_out_channels[:2][-1]
    last = KernelSpec(
        height=height // 2,
        width=width // 2,
        channels_in=channels,
        channels_out=channels,
        upsamples=True,
    )
    return block_rows(device_kind, last, maps=1) is not None
