"""The denoiser: UNet2DConditionModel of Stable Diffusion 1.x, 2.x (Rombach et al. 2022) and SDXL
(Podell et al. 2023).

Goes in: noisy latents, a timestep per latent, the prompt as the text encoders leave it. Comes out:
the model's prediction (noise, v or sample: the scheduler knows which). Maps are `[b, h, w, c]`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.attention import attention
from imagefleet.worker.engine.models.blocks import (
    GroupNorm,
    ResnetBlock,
    Upsample,
    conv,
    gelu,
    layer_norm,
    linear,
)
from imagefleet.worker.engine.models.unet_config import UNetConfig


def timestep_embedding(
    timesteps: jax.Array, width: int, *, flip_sin_to_cos: bool, freq_shift: int
) -> jax.Array:
    """Sinusoids of the timestep (Ho et al. 2020); `[b]` to `[b, width]`, float32."""
    half = width // 2
    exponents = jnp.arange(half, dtype=jnp.float32) / (half - freq_shift)
    angles = timesteps[:, None] * jnp.exp(-math.log(10_000) * exponents)  # [b, width / 2]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([cos, sin] if flip_sin_to_cos else [sin, cos], axis=-1)


class TimeEmbedding(nnx.Module):
    """TimestepEmbedding: two layers over the sinusoids."""

    def __init__(self, width: int, inner: int) -> None:
        self.linear_1 = linear(width, inner)
        self.linear_2 = linear(inner, inner)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear_2(jax.nn.silu(self.linear_1(x)))


class KeyValue(NamedTuple):
    """What a layer attends to, projected: each `[b, n, c]`."""

    key: jax.Array
    value: jax.Array


class Attention(nnx.Module):
    """Of the pixels to themselves, or to the text."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        self.heads = heads
        self.to_q = linear(width, width, use_bias=False)
        self.to_k = linear(context_width, width, use_bias=False)
        self.to_v = linear(context_width, width, use_bias=False)
        self.to_out = linear(width, width)

    def read(self, context: jax.Array) -> KeyValue:
        """Project `context [b, n, d]`. The text stays the same over all steps: once is enough."""
        return KeyValue(self.to_k(context), self.to_v(context))

    def __call__(self, x: jax.Array, read: KeyValue) -> jax.Array:
        return self.to_out(attention(self.to_q(x), read.key, read.value, heads=self.heads))


class FeedForward(nnx.Module):
    """GEGLU (Shazeer 2020), with GELU by the error function."""

    def __init__(self, width: int) -> None:
        self.proj_in = linear(width, 8 * width)
        self.proj_out = linear(4 * width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        value, gate = jnp.split(self.proj_in(x), 2, axis=-1)
        return self.proj_out(value * gelu(gate))


class TransformerBlock(nnx.Module):
    """BasicTransformerBlock: self-attention, cross-attention, feed-forward."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        self.norm1 = layer_norm(width, 1e-5)
        self.attn1 = Attention(width, width, heads)
        self.norm2 = layer_norm(width, 1e-5)
        self.attn2 = Attention(width, context_width, heads)
        self.norm3 = layer_norm(width, 1e-5)
        self.ff = FeedForward(width)

    def __call__(self, x: jax.Array, text: KeyValue) -> jax.Array:
        """`x [b, h*w, c]`, `text` as `attn2` reads it."""
        normed = self.norm1(x)
        x += self.attn1(normed, self.attn1.read(normed))
        x += self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


Texts = Sequence[Sequence[KeyValue]]
"""The text as every transformer of a block attends to it."""


class Transformer(nnx.Module):
    """Transformer2DModel: the pixels of a map as a sequence."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        width = config.block_out_channels[level]
        # 1e-6 here and norm_eps in the resnets: so it is in diffusers.
        self.norm = GroupNorm(width, config.norm_num_groups, 1e-6)
        self.proj_in = linear(width, width)
        self.transformer_blocks = nnx.List(
            TransformerBlock(width, config.cross_attention_dim, config.heads[level])
            for _ in range(config.transformer_layers[level])
        )
        self.proj_out = linear(width, width)

    def read(self, text: jax.Array) -> list[KeyValue]:
        """`text [b, n, d]` as each block attends to it."""
        return [block.attn2.read(text) for block in self.transformer_blocks]

    def __call__(self, x: jax.Array, text: Sequence[KeyValue]) -> jax.Array:
        """`x [b, h, w, c]`, `text` from `read`."""
        batch, _, _, channels = x.shape
        hidden = self.proj_in(self.norm(x).reshape(batch, -1, channels))  # [b, h*w, c]
        for block, read in zip(self.transformer_blocks, text, strict=True):
            hidden = block(hidden, read)
        return x + self.proj_out(hidden).reshape(x.shape)


def _resnet(config: UNetConfig, channels_in: int, channels_out: int) -> ResnetBlock:
    return ResnetBlock(
        channels_in,
        channels_out,
        groups=config.norm_num_groups,
        epsilon=config.norm_eps,
        time_channels=4 * config.block_out_channels[0],
    )


class Downsample(nnx.Module):
    """Downsample2D: a convolution of stride 2."""

    def __init__(self, channels: int) -> None:
        self.conv = conv(channels, channels, stride=2)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(x)


class DownBlock(nnx.Module):
    """DownBlock2D and CrossAttnDownBlock2D."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        channels = config.block_out_channels
        width, layers = channels[level], config.layers_per_block[level]
        widths_in = [channels[max(level - 1, 0)], *[width] * (layers - 1)]
        self.resnets = nnx.List(_resnet(config, before, width) for before in widths_in)
        attending = layers if config.down_attends[level] else 0
        self.attentions = nnx.List(Transformer(config, level) for _ in range(attending))
        is_last = level == len(channels) - 1
        self.downsampler = None if is_last else Downsample(width)

    def __call__(self, x: jax.Array, time: jax.Array, text: Texts) -> list[jax.Array]:
        """The output of every layer; the last one is the block's. A text for each attention."""
        outputs = []
        for index, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions:
                x = self.attentions[index](x, text[index])
            outputs.append(x)
        if self.downsampler is not None:
            outputs.append(self.downsampler(x))
        return outputs


class MidBlock(nnx.Module):
    """UNetMidBlock2DCrossAttn and UNetMidBlock2D."""

    def __init__(self, config: UNetConfig) -> None:
        level = len(config.block_out_channels) - 1
        width = config.block_out_channels[level]
        attending = int(config.mid_attends)
        self.resnets = nnx.List(_resnet(config, width, width) for _ in range(1 + attending))
        self.attentions = nnx.List(Transformer(config, level) for _ in range(attending))

    def __call__(self, x: jax.Array, time: jax.Array, text: Texts) -> jax.Array:
        x = self.resnets[0](x, time)
        for index, attend in enumerate(self.attentions):
            x = self.resnets[index + 1](attend(x, text[index]), time)
        return x


class UpBlock(nnx.Module):
    """UpBlock2D and CrossAttnUpBlock2D; takes one more layer than its down block."""

    def __init__(self, config: UNetConfig, index: int) -> None:
        channels = config.block_out_channels
        level = len(channels) - 1 - index
        width, layers = channels[level], config.layers_per_block[level] + 1
        below = channels[min(level + 1, len(channels) - 1)]
        hidden = [below, *[width] * (layers - 1)]
        skipped = [*[width] * (layers - 1), channels[max(level - 1, 0)]]
        self.resnets = nnx.List(
            _resnet(config, own + skip, width) for own, skip in zip(hidden, skipped, strict=True)
        )
        attending = layers if config.up_attends[index] else 0
        self.attentions = nnx.List(Transformer(config, level) for _ in range(attending))
        self.upsampler = None if level == 0 else Upsample(width)

    def __call__(
        self, x: jax.Array, skips: list[jax.Array], time: jax.Array, text: Texts
    ) -> jax.Array:
        """Takes its skips from the end of `skips`, and removes them there."""
        for index, resnet in enumerate(self.resnets):
            x = resnet(jnp.concatenate([x, skips.pop()], axis=-1), time)
            if self.attentions:
                x = self.attentions[index](x, text[index])
        return x if self.upsampler is None else self.upsampler(x)


class Reading(NamedTuple):
    """What the UNet took from a prompt."""

    texts: Sequence[Texts]
    """For each block: down, mid, up."""
    added: jax.Array | None
    """`[…, e]`, onto the timestep's embedding; None where the config has no `added`."""


class UNet(nnx.Module):
    """UNet2DConditionModel."""

    def __init__(self, config: UNetConfig) -> None:
        self.config = config
        width = config.block_out_channels[0]
        levels = range(len(config.block_out_channels))
        self.conv_in = conv(config.in_channels, width)
        self.time_embedding = TimeEmbedding(width, 4 * width)
        added = config.added
        self.add_embedding = TimeEmbedding(added.width, 4 * width) if added else None
        self.down_blocks = nnx.List(DownBlock(config, level) for level in levels)
        self.mid_block = MidBlock(config)
        self.up_blocks = nnx.List(UpBlock(config, index) for index in levels)
        self.conv_norm_out = GroupNorm(width, config.norm_num_groups, config.norm_eps)
        self.conv_out = conv(width, config.out_channels)

    def read(
        self,
        hidden: jax.Array,
        pooled: jax.Array | None = None,
        time_ids: Sequence[float] = (),
    ) -> Reading:
        """What the UNet takes from a prompt, once for all steps.

        Args:
            hidden: The text encoders' states `[…, n, d]`.
            pooled: The prompt as a whole `[…, p]`, where the config has `added`.
            time_ids: Then also the picture's height and width, the top and left of its crop, and
                the height and width wanted; in pixels (Podell et al. 2023, section 2.2).
        """
        blocks: list[DownBlock | MidBlock | UpBlock] = [*self.down_blocks, self.mid_block]
        blocks += self.up_blocks
        texts = [[each.read(hidden) for each in block.attentions] for block in blocks]
        if self.add_embedding is None or self.config.added is None or pooled is None:
            return Reading(texts, None)
        numbers = self._sinusoids(jnp.array(time_ids, jnp.float32), self.config.added.sinusoids)
        numbers = jnp.broadcast_to(numbers.reshape(-1), (*pooled.shape[:-1], numbers.size))
        both = jnp.concatenate([pooled, numbers.astype(pooled.dtype)], axis=-1)
        return Reading(texts, self.add_embedding(both))

    def __call__(self, latents: jax.Array, timesteps: jax.Array, prompt: Reading) -> jax.Array:
        """`latents [b, h, w, c]`, `timesteps [b]` float32, `prompt` from `read`; computes in the
        dtype of `latents` and returns the prediction `[b, h, w, out_channels]`."""
        sinusoids = self._sinusoids(timesteps, self.config.block_out_channels[0])
        time = self.time_embedding(sinusoids.astype(latents.dtype))
        if prompt.added is not None:
            time += prompt.added
        x = self.conv_in(latents)
        skips = [x]
        texts = iter(prompt.texts)
        for down in self.down_blocks:
            skips += down(skips[-1], time, next(texts))
        x = self.mid_block(skips[-1], time, next(texts))
        for up in self.up_blocks:
            x = up(x, skips, time, next(texts))
        return self.conv_out(jax.nn.silu(self.conv_norm_out(x)))

    def _sinusoids(self, numbers: jax.Array, width: int) -> jax.Array:
        return timestep_embedding(
            numbers,
            width,
            flip_sin_to_cos=self.config.flip_sin_to_cos,
            freq_shift=self.config.freq_shift,
        )
