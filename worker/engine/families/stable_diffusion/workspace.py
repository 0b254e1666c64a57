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
_CONTROL_MAPS: Final = 12
"""With ControlNets there are so many more. What a net adds is as large as the skips, 5.1 such maps
with the blocks of Stable Diffusion 1; it is there twice while it is added up, beside the embedding
of the control image."""


def _context_bytes(
    configs: Configs, networks: Mapping[str, nnx.Module], dtype: np.dtype[Any]
) -> int:
    """Return the bytes of keys and values of one chunk of the prompts of an image. Those of the
    first chunk are part of `_UNET_MAPS`."""
    arrays = jax.tree.leaves(prompt_context(configs, networks).blocks)
    return sum(math.prod(array.shape) * dtype.itemsize for array in arrays)


def workspace_bytes(
    configs: Configs,
    networks: Mapping[str, nnx.Module],
    shape: Shape,
    workload: Workload,
    *,
    control_nets: int = 0,
) -> int:
    """Estimate the bytes that a device needs for a batch of this shape, besides the weights.

    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    ControlNets run one after the other, so their number matters for the prompts only. A net has
    keys and values for about half the layers of the UNet; they are counted for all.
    """
    decoder = decoder_bytes(configs.vae, shape.height, shape.width, workload)
    maps = _UNET_MAPS + _CONTROL_MAPS * bool(control_nets)
    step = _step_bytes(configs, shape, workload, maps)
    chunks = max(1, workload.prompt_chunks)
    contexts, context = chunks - 1 + chunks * control_nets, 0
    if contexts:
        context = contexts * _context_bytes(configs, networks, workload.dtype)
    batch = decoder + step if workload.streams else max(decoder, step)
    return batch + workload.per_device_batch * context


def _step_bytes(configs: Configs, shape: Shape, workload: Workload, held_maps: int) -> int:
    latents = shape.height * shape.width // configs.vae.downsampling**2
    itemsize = workload.dtype.itemsize
    maps = held_maps * latents * configs.unet.block_out_channels[0] * itemsize
    scores = max(_score_bytes(configs, latents, workload), default=0)
    return workload.per_device_batch * configs.guided_rows * (maps + scores)


def _score_bytes(configs: Configs, latents: int, workload: Workload) -> Iterator[int]:
    """Yield the bytes of the attention scores of each layer of the UNet that stores them.

    A TPU stores no scores of packed heads (`packed_attention`), except for masked prompts. They are
    always counted.
    """
    for layer in unet_layers(configs, latents, workload.dtype, workload.prompt_chunks):
        yield stored_score_bytes(workload.platform, layer)
