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
from imagefleet.worker.engine.kernels.attention_backend import stored_score_bytes
from imagefleet.worker.engine.networks.vae_memory import decoder_bytes
from imagefleet.worker.engine.placement.memory_check import Workload

_UNET_MAPS: Final = 27
"""The UNet holds this many maps at once besides its scores, skips included. This is measured in the
same way as those of the decoder: 268 MiB for a prompt and its negative prompt."""


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
    decoder = decoder_bytes(configs.vae, shape.height, shape.width, workload)
    step = _step_bytes(configs, shape, workload)
    context = 0
    if workload.prompt_chunks > 1:
        more_chunks = workload.prompt_chunks - 1
        context = more_chunks * _context_bytes(configs, networks, workload.dtype)
    batch = decoder + step if workload.streams else max(decoder, step)
    return batch + workload.per_device_batch * context


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
    for layer in unet_layers(configs, latents, workload.dtype, workload.prompt_chunks):
        yield stored_score_bytes(workload.platform, layer)
