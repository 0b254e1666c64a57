"""Estimate the memory that a model and a batch need on a device.

Input: configs, shapes, the size of a batch. Output: bytes. It reads no weights and asks no device,
so that it also serves hosts that are not here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from imagefleet.worker.engine.kernels.large_convolution import KernelSpec, block_rows, has_kernel
from imagefleet.worker.engine.placement.mesh import split_axis

_DECODER_MAPS: Final = {"cpu": 6.0, "gpu": 6.0, "tpu": 10.5}
"""Full-size maps, as wide as the decoder's first level, that the decoder holds at once. On CPU
measured with XLA's memory analysis of Stable Diffusion 1.4 at 512x512: 768 MiB. For TPUs
docs/tpu.md has what their compiler takes."""
_DECODER_MAPS_BY_KERNEL: Final = 3.3
"""The same on TPUs whose kernel for large maps computes the last upsampling."""
_DECODER_FIXED_BYTES: Final = {"cpu": 0, "gpu": 0, "tpu": 250_000_000}
"""Bytes that the decoder needs whatever the size of the image: on TPUs mostly its code."""
_UNET_MAPS: Final = 27
"""Maps that the UNet holds at once besides its scores, skips included. Measured in the same way:
268 MiB for a prompt and its negative prompt."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """The bytes that one device needs."""

    weights: int
    workspace: int
    """What a batch needs besides the weights."""

    @property
    def total(self) -> int:
        """Return the bytes of both."""
        return self.weights + self.workspace


def memory_need(
    configs: Configs,
    networks: Mapping[str, nnx.Module],
    shapes: Sequence[Shape],
    *,
    model: int,
    per_device_batch: int,
    dtype: np.dtype[Any],
    platform: str,
    device_kind: str,
    streams: bool = False,
    prompt_chunks: int = 0,
) -> MemoryNeed:
    """Estimate the bytes that a device needs.

    Args:
        configs: Of the model.
        networks: From `abstract_networks`.
        shapes: The declared shapes. Without one, only the weights count.
        model: The number of devices that share one copy of the weights.
        per_device_batch: Images that one copy of the weights denoises at a time.
        dtype: That of the weights.
        platform: `cpu`, `gpu` or `tpu`.
        device_kind: As JAX names it.
        streams: Whether the devices run streams instead of whole batches.
        prompt_chunks: The most chunks of a prompt with weights.
    """
    more_context = 0
    if prompt_chunks > 1:
        more_context = (prompt_chunks - 1) * _context_bytes(configs, networks, dtype)
    workspaces = [
        workspace_bytes(
            configs,
            shape,
            per_device_batch=per_device_batch,
            dtype=dtype,
            platform=platform,
            by_kernel=has_kernel(device_kind, dtype, model)
            and _upsamples_by_kernel(configs, shape, device_kind),
            streams=streams,
            prompt_chunks=prompt_chunks,
        )
        for shape in shapes
    ]
    return MemoryNeed(
        weights=sum(_weight_bytes(network, model, dtype) for network in networks.values()),
        workspace=max(workspaces, default=0) + per_device_batch * more_context,
    )


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


def _weight_bytes(network: nnx.Module, model: int, dtype: np.dtype[Any]) -> int:
    shapes = [weight.shape for weight in jax.tree.leaves(nnx.to_pure_dict(nnx.state(network)))]
    return sum(
        math.prod(shape) * dtype.itemsize // (1 if split_axis(shape, model) is None else model)
        for shape in shapes
    )


def _context_bytes(
    configs: Configs, networks: Mapping[str, nnx.Module], dtype: np.dtype[Any]
) -> int:
    """Return the bytes of keys and values of one chunk of the prompts of an image. Those of the
    first are part of `_UNET_MAPS`."""
    arrays = jax.tree.leaves(prompt_context(configs, networks).blocks)
    return sum(math.prod(array.shape) * dtype.itemsize for array in arrays)


def workspace_bytes(
    configs: Configs,
    shape: Shape,
    *,
    per_device_batch: int,
    dtype: np.dtype[Any],
    platform: str,
    by_kernel: bool = False,
    streams: bool = False,
    prompt_chunks: int = 0,
) -> int:
    """Estimate the bytes that a device needs for a batch, besides the weights.

    `by_kernel` says whether the kernel of `large_convolution` computes the last upsampling.
    A device decodes one image at a time. A stream does so beside the next steps, so it needs both.
    """
    pixels = shape.height * shape.width
    decoder_map = pixels * configs.vae.block_out_channels[0] * dtype.itemsize
    decoder_maps = _DECODER_MAPS_BY_KERNEL if by_kernel else _DECODER_MAPS[platform]
    decoder = int(decoder_maps * decoder_map) + _DECODER_FIXED_BYTES[platform]
    latents = pixels // configs.vae.downsampling**2
    maps = _UNET_MAPS * latents * configs.unet.block_out_channels[0] * dtype.itemsize
    scores = max(_score_bytes(configs, latents, dtype, platform, prompt_chunks), default=0)
    step = per_device_batch * configs.guided_rows * (maps + scores)
    return decoder + step if streams else max(decoder, step)


def _score_bytes(
    configs: Configs, latents: int, dtype: np.dtype[Any], platform: str, prompt_chunks: int
) -> Iterator[int]:
    """Yield the bytes of the attention scores of each layer of the UNet that stores them.

    A TPU stores no scores of packed heads (`packed_attention`), except for masked prompts. They are
    always counted.
    """
    for layer in unet_layers(configs, latents, dtype, prompt_chunks):
        if choose_backend(platform, layer) in (Backend.FOLDED, Backend.QUERY_BLOCKS):
            yield min(layer.score_bytes, MAX_SCORE_BYTES[platform])
