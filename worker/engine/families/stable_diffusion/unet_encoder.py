"""Define the first half of the UNet: the embeddings, the down blocks and the middle block.

Input: noisy latents, a timestep for each, and the states of the text encoders. Output: feature maps
`[b, h, w, c]`. The whole UNet is in `unet.py`, and a ControlNet, which copies this half, in
`control_net.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import (
    BlockContext,
    Transformer,
)
from imagefleet.worker.engine.families.stable_diffusion.weight_names import UNET_NAMES
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.networks.blocks import ResnetBlock, conv, linear
from imagefleet.worker.engine.networks.row_split import (
    compute_by_rows,
    compute_together,
    splits_rows,
)
from imagefleet.worker.engine.networks.sinusoids import sinusoids

T = TypeVar("T")


class TimeEmbedding(nnx.Module):
    """It is diffusers' TimestepEmbedding: two layers over the sinusoids."""

    def __init__(self, channels_in: int, width: int, condition_width: int | None = None) -> None:
        self.linear_1 = linear(channels_in, width)
        self.cond_proj = (
            None
            if condition_width is None
            else linear(condition_width, channels_in, use_bias=False)
        )
        self.linear_2 = linear(width, width)

    def __call__(self, x: jax.Array, condition: jax.Array | None = None) -> jax.Array:
        """Embed `x [b, c]`; `condition [b, d]` is added to it if the layer has a projection."""
        if self.cond_proj is not None and condition is not None:
            x += self.cond_proj(condition)
        return self.linear_2(jax.nn.silu(self.linear_1(x)))


def time_resnet(config: UNetConfig, channels_in: int, channels_out: int) -> ResnetBlock:
    """Return a residual block that reads the time embedding."""
    return ResnetBlock(
        channels_in,
        channels_out,
        groups=config.norm_num_groups,
        epsilon=config.norm_eps,
        time_channels=4 * config.block_out_channels[0],
    )


class Downsample(nnx.Module):
    """It is diffusers' Downsample2D: a convolution of stride 2."""

    def __init__(self, channels: int) -> None:
        self.conv = conv(channels, channels, stride=2)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(x)


class DownBlock(nnx.Module):
    """It is both DownBlock2D and CrossAttnDownBlock2D of diffusers."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        channels = config.block_out_channels
        width, layers = channels[level], config.layers_per_block[level]
        widths_in = [channels[max(level - 1, 0)], *[width] * (layers - 1)]
        self.resnets = nnx.List(time_resnet(config, before, width) for before in widths_in)
        has_attention = config.down_has_attention[level]
        transformers = config.down_transformer_layers[level] if has_attention else ()
        self.attentions = nnx.List(Transformer(config, level, depth) for depth in transformers)
        is_last = level == len(channels) - 1
        self.downsampler = None if is_last else Downsample(width)

    def __call__(self, x: FeatureMap, time: jax.Array, context: BlockContext) -> list[FeatureMap]:
        """Return the output of every layer. The last one is the output of the block."""
        outputs = []
        for index, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions:
                x = self.attentions[index](x, context[index])
            outputs.append(x)
        if self.downsampler is not None:
            outputs.append(FeatureMap(self.downsampler(x.values)))
        return outputs


class MidBlock(nnx.Module):
    """It is both UNetMidBlock2DCrossAttn and UNetMidBlock2D of diffusers."""

    def __init__(self, config: UNetConfig) -> None:
        level = len(config.block_out_channels) - 1
        width = config.block_out_channels[level]
        transformers = int(config.mid_has_attention)
        self.resnets = nnx.List(time_resnet(config, width, width) for _ in range(1 + transformers))
        self.attentions = nnx.List(
            Transformer(config, level, config.mid_transformer_layers) for _ in range(transformers)
        )

    def __call__(self, x: FeatureMap, time: jax.Array, context: BlockContext) -> FeatureMap:
        x = self.resnets[0](x, time)
        for index, transformer in enumerate(self.attentions):
            x = self.resnets[index + 1](transformer(x, context[index]), time)
        return x


class PromptContext(NamedTuple):
    """It is the part of the UNet's computation that depends on the prompt, but not on the step."""

    blocks: Sequence[BlockContext]
    """They are the keys and values of the text for each block: down, mid, up."""
    text_time_embedding: jax.Array | None
    """It is `[…, e]`, added to the timestep's embedding. None if the config has no `text_time`."""
    mask: jax.Array | None = None
    """bool `[…, n]`: the tokens that the UNet attends to. None means that it attends to all."""

    def masked_blocks(self) -> Sequence[BlockContext]:
        """Return `blocks` with the mask in each layer."""
        return [
            [[layer._replace(mask=self.mask) for layer in layers] for layers in block]
            for block in self.blocks
        ]


class UNetEncoder(nnx.Module):
    """It is the first half of a UNet, down to its middle block. A ControlNet is a copy of it."""

    weight_names: ClassVar = UNET_NAMES

    def __init__(self, config: UNetConfig) -> None:
        self.config = config
        width = config.block_out_channels[0]
        levels = range(len(config.block_out_channels))
        self.conv_in = conv(config.in_channels, width)
        self.time_embedding = TimeEmbedding(width, 4 * width, config.time_cond_proj_dim)
        text_time = config.text_time
        self.add_embedding = TimeEmbedding(text_time.width, 4 * width) if text_time else None
        self.down_blocks = nnx.List(DownBlock(config, level) for level in levels)
        self.mid_block = MidBlock(config) if config.has_mid_block else None

    def _attentions(self) -> list[Sequence[Transformer]]:
        """Return the transformers of each block, in the order of the computation."""
        blocks: list[DownBlock | MidBlock] = [
            *self.down_blocks,
            *([] if self.mid_block is None else [self.mid_block]),
        ]
        return [block.attentions for block in blocks]

    def project_context(
        self,
        encoder_hidden_states: jax.Array,
        text_embeds: jax.Array | None = None,
        time_ids: ArrayLike | Sequence[float] = (),
    ) -> PromptContext:
        """Return the keys and values of the prompt. They stay the same over all steps of a batch.

        Args:
            encoder_hidden_states: States of the text encoders `[…, n, d]`.
            text_embeds: Pooled state of the prompt `[…, p]`, if the config has `text_time`.
            time_ids: In that case also the numbers about the image, `[t]` for all prompts or
                `[2, t]` for the negative prompt and the prompt: see `time_ids.py`.
        """
        contexts = [
            [transformer.project_context(encoder_hidden_states) for transformer in transformers]
            for transformers in self._attentions()
        ]
        text_time = self.config.text_time
        if self.add_embedding is None or text_time is None or text_embeds is None:
            return PromptContext(contexts, None)
        numbers = jnp.asarray(time_ids, jnp.float32)
        sinusoids = self._sinusoids(numbers.reshape(-1), text_time.sinusoids)
        sinusoids = sinusoids.reshape(*numbers.shape[:-1], -1).astype(text_embeds.dtype)
        sinusoids = jnp.broadcast_to(sinusoids, (*text_embeds.shape[:-1], sinusoids.shape[-1]))
        text_and_numbers = jnp.concatenate([text_embeds, sinusoids], axis=-1)
        return PromptContext(contexts, self.add_embedding(text_and_numbers))

    def embed_time(
        self,
        timesteps: jax.Array,
        prompt: PromptContext,
        dtype: jnp.dtype,
        guidance: jax.Array | None = None,
    ) -> jax.Array:
        """Return the embedding of the timesteps, the guidance scale and what `text_time` adds, `[b,
        4 * channels]`."""
        waves = self._sinusoids(timesteps, self.config.block_out_channels[0])
        time = self.time_embedding(waves.astype(dtype), self._embed_guidance(guidance, dtype))
        if prompt.text_time_embedding is not None:
            time += prompt.text_time_embedding
        return time

    def encode(
        self, x: jax.Array, time: jax.Array, contexts: Iterator[BlockContext]
    ) -> tuple[list[FeatureMap], FeatureMap]:
        """Return the maps that up blocks read, the finest first, and the output of the middle.

        Args:
            x: What `conv_in` makes, `[b, h, w, c]`.
            time: From `embed_time`.
            contexts: Of the blocks. Those of the down blocks and the middle are taken.
        """
        skips = [FeatureMap(x)]
        for level, down in enumerate(self.down_blocks):
            skips += self.run(level, DownBlock.__call__, down, skips[-1], time, next(contexts))
        if self.mid_block is None:
            return skips, skips[-1]
        context = next(contexts)
        return skips, self.run(-1, MidBlock.__call__, self.mid_block, skips[-1], time, context)

    def run(
        self, level: int, compute: Callable[..., T], layers: Any, x: FeatureMap, *rest: Any
    ) -> T:
        """Return what a block computes of the map `x` and the rest.

        Where devices share weights, they compute the finer levels for different rows.
        """
        rows, height, width, _ = x.values.shape
        by_rows = splits_rows(rows, height * width, self.config.block_out_channels[level])
        run = compute_by_rows if by_rows else compute_together
        return run(compute, layers, x, *rest)

    def _embed_guidance(self, guidance: jax.Array | None, dtype: jnp.dtype) -> jax.Array | None:
        """Return the sinusoids of the guidance scale w + 1 (Luo et al. 2023, section 4.2)."""
        width = self.config.time_cond_proj_dim
        if width is None or guidance is None:
            return None
        waves = sinusoids(1000 * (guidance - 1), width, flip_sin_to_cos=False, freq_shift=1)
        return waves.astype(dtype)

    def _sinusoids(self, numbers: jax.Array, width: int) -> jax.Array:
        return sinusoids(
            numbers,
            width,
            flip_sin_to_cos=self.config.flip_sin_to_cos,
            freq_shift=self.config.freq_shift,
        )
