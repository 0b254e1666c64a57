"""Estimate the memory that a batch of Stable Diffusion needs on a device besides the weights.

Input: configs, a shape, a workload. Output: bytes. It reads no weights and asks no device, so that
it also serves hosts that are not here.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.attention_layers import unet_layers
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.flops import prompt_context
from imagefleet.worker.engine.kernels.attention_backend import (
    MAX_SCORE_BYTES,
    Backend,
    choose_backend,
)
from imagefleet.worker.engine.kernels.large_convolution import block_rows, has_kernel
from imagefleet.worker.engine.kernels.large_convolution_spec import KernelSpec
from imagefleet.worker.engine.placement.memory_check import Workload

_DECODER_MAPS: Final = {"cpu": 6.0, "gpu": 6.0, "tpu": 10.5}
"""The decoder holds this many full-size maps at once, as wide as its first level. On CPU this is
measured with XLA's memory analysis of Stable Diffusion 1.4 at 512x512: 768 MiB. For TPUs
docs/tpu.md has what their compiler takes."""
_DECODER_MAPS_BY_KERNEL: Final = 3.3
"""It is the number of maps on TPUs whose kernel for large maps computes the last upsampling."""
_DECODER_FIXED_BYTES: Final = {"cpu": 0, "gpu": 0, "tpu": 250_000_000}
"""The decoder needs this many bytes whatever the size of the image. On TPUs they are mostly its
code."""
_UNET_MAPS: Final = 27
"""The UNet holds this many maps at once besides its scores, skips included. This is measured in the
same way: 268 MiB for a prompt and its negative prompt."""


def _upsamples_by_kernel(configs: Configs, shape: Shape, device_kind: str) -> bool:
    """Return whether the kernel computes the decoder's last upsampling, the largest one."""
    channels = configs.vae.block_out_channels[:2][-1]
    last = KernelSpec(
        height=shape.height // 2,
        width=shape.width // 2,
        channels_in=channels,
        channels_out=channels,
        upsamples=True,
    )
    return block_rows(device_kind, last, maps=1) is not None


def _context_bytes(
    configs: Configs, networks: Mapping[str, nnx.Module], dtype: np.dtype[Any]
) -> int:
    """Return the bytes of keys and values of one chunk of the prompts of an image. Those of the
    first chunk are part of `_UNET_MAPS`."""
    arrays = jax.tree.leaves(prompt_context(configs, networks).blocks)
    return sum(math.prod(array.shape) * dtype.itemsize for array in arrays)


def workspace_bytes(
    configs: Configs, networks: Mapping[str, nnx.Module], shape: Shape, workload: Workload
) -> int:
    """Estimate the bytes that a device needs for a batch of this shape, besides the weights.

    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    """
    decoder = _decoder_bytes(configs, shape, workload)
    step = _step_bytes(configs, shape, workload)
    context = 0
    if workload.prompt_chunks > 1:
        more_chunks = workload.prompt_chunks - 1
        context = more_chunks * _context_bytes(configs, networks, workload.dtype)
    batch = decoder + step if workload.streams else max(decoder, step)
    return batch + workload.per_device_batch * context


def _decoder_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    dtype, platform = workload.dtype, workload.platform
    decoder_map = shape.height * shape.width * configs.vae.block_out_channels[0] * dtype.itemsize
    by_kernel = has_kernel(workload.device_kind, dtype, workload.model)
    if by_kernel and _upsamples_by_kernel(configs, shape, workload.device_kind):
        decoder_maps = _DECODER_MAPS_BY_KERNEL
    else:
        decoder_maps = _DECODER_MAPS[platform]
    return int(decoder_maps * decoder_map) + _DECODER_FIXED_BYTES[platform]


def _step_bytes(configs: Configs, shape: Shape, workload: Workload) -> int:
    latents = shape.height * shape.width // configs.vae.downsampling**2
    itemsize = workload.dtype.itemsize
    maps = _UNET_MAPS * latents * configs.unet.block_out_channels[0] * itemsize
    scores = max(_score_bytes(configs, latents, workload), default=0)
    return workload.per_device_batch * configs.guided_rows * (maps + scores)


def _score_bytes(configs: Configs, latents: int, workload: Workload) -> Iterator[int]:
    """Yield the bytes of the attention scores of each layer of the UNet that stores them.

    A TPU stores no scores of packed heads (`packed_attention`), except for masked prompts. They are
    always counted.
    """
    limit = MAX_SCORE_BYTES[workload.platform]
    for layer in unet_layers(configs, latents, workload.dtype, workload.prompt_chunks):
        if choose_backend(workload.platform, layer) in (Backend.FOLDED, Backend.QUERY_BLOCKS):
            yield min(layer.score_bytes, limit)
