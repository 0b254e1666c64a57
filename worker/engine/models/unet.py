"""The denoiser: UNet2DConditionModel of Stable Diffusion 1.x, 2.x (Rombach et al. 2022) and SDXL
(Podell et al. 2023).

Goes in: noisy latents, a timestep per latent, the prompt as the text encoders leave it. Comes out:
the model's prediction (noise, v or sample: the scheduler knows which). Maps are `[b, h, w, c]`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from worker.engine.attention import attention
from worker.engine.models.blocks import (
    GroupNorm,
    ResnetBlock,
    Upsample,
    conv,
    gelu,
    layer_norm,
    linear,
)
from worker.engine.models.config import ConfigReader, Json

_ATTENDING: Final = {
    "DownBlock2D": False,
    "CrossAttnDownBlock2D": True,
    "UpBlock2D": False,
    "CrossAttnUpBlock2D": True,
}

_TIME_IDS: Final = 6
"""Numbers that SDXL tells the UNet of a picture: see `UNet.read`."""


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """`unet/config.json`. Tuples have an entry per resolution level, the finest first."""

    sample_size: int
    in_channels: int
    out_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    down_attends: tuple[bool, ...]
    up_attends: tuple[bool, ...]
    """In the order of the file: the coarsest first."""
    mid_attends: bool
    transformer_layers: tuple[int, ...]
    heads: tuple[int, ...]
    cross_attention_dim: int
    added: "AddedConfig | None"
    norm_num_groups: int
    norm_eps: float
    flip_sin_to_cos: bool
    freq_shift: int

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that are missing or ask for another network.
        """
        fields = ConfigReader("UNet", config)
        channels = fields.counts("block_out_channels", (320, 640, 1280, 1280))
        levels = len(channels)
        _refuse_other_families(fields)
        read = cls(
            sample_size=fields.count("sample_size", 64),
            in_channels=fields.count("in_channels", 4),
            out_channels=fields.count("out_channels", 4),
            block_out_channels=channels,
            layers_per_block=fields.per_level("layers_per_block", 2, levels),
            down_attends=_attends(fields, "down_block_types", levels),
            up_attends=_attends(fields, "up_block_types", levels),
            mid_attends=_mid_attends(fields),
            transformer_layers=fields.per_level("transformer_layers_per_block", 1, levels),
            heads=_heads(fields, channels),
            cross_attention_dim=fields.count("cross_attention_dim", 1280),
            added=AddedConfig.read(fields),
            norm_num_groups=fields.divisor("norm_num_groups", 32, of=channels),
            norm_eps=fields.get("norm_eps", 1e-5),
            flip_sin_to_cos=fields.choice("flip_sin_to_cos", True, (True, False)),
            freq_shift=fields.get("freq_shift", 0),
        )
        fields.finish()
        return read

    @property
    def downsampling(self) -> int:
        """Latent sizes must be divisible by this."""
        return 1 << (len(self.block_out_channels) - 1)


@dataclass(frozen=True)
class AddedConfig:
    """SDXL's second embedding beside the timestep's: the prompt as a whole, and the picture's size,
    crop and target size."""

    pooled: int
    """Width of the prompt's pooled state."""
    sinusoids: int
    """Width of the embedding of each of the six numbers."""

    @classmethod
    def read(cls, fields: ConfigReader) -> Self | None:
        """None for a family without it."""
        kind = fields.choice("addition_embed_type", None, (None, "text_time"))
        names = ("addition_time_embed_dim", "projection_class_embeddings_input_dim")
        if kind is None:
            fields.ignored(*names)
            return None
        sinusoids, width = (fields.count(name) for name in names)
        if (pooled := width - _TIME_IDS * sinusoids) < 1:
            fields.fault(f"{names[1]}={width} has no room for {_TIME_IDS} x {names[0]}={sinusoids}")
        return cls(pooled, sinusoids)

    @property
    def width(self) -> int:
        return self.pooled + _TIME_IDS * self.sinusoids


def _attends(fields: ConfigReader, name: str, levels: int) -> tuple[bool, ...]:
    side = "Down" if name.startswith("down") else "Up"
    for block in (kinds := fields.get(name)):
        fields.one_of(f"{name} entry", block, tuple(k for k in _ATTENDING if side in k))
    if len(kinds) != levels:
        fields.fault(f"{name} has {len(kinds)} entries for {levels} levels")
    return tuple(_ATTENDING.get(block, False) for block in kinds)


def _mid_attends(fields: ConfigReader) -> bool:
    kinds = {"UNetMidBlock2DCrossAttn": True, "UNetMidBlock2D": False}
    return bool(kinds.get(fields.choice("mid_block_type", next(iter(kinds)), tuple(kinds))))


def _heads(fields: ConfigReader, channels: tuple[int, ...]) -> tuple[int, ...]:
    """Heads per level. `attention_head_dim` is their number in every published config, against its
    name; where `num_attention_heads` is given too, it is what it says."""
    levels = len(channels)
    if fields.get("num_attention_heads", None) is None:
        return fields.per_level("attention_head_dim", 8, levels)
    heads = fields.per_level("num_attention_heads", None, levels)
    widths = fields.per_level("attention_head_dim", 8, levels)
    if channels != tuple(count * width for count, width in zip(heads, widths, strict=False)):
        fields.fault(
            f"num_attention_heads={list(heads)} x attention_head_dim={list(widths)} "
            f"are not block_out_channels={list(channels)}"
        )
    return heads


def _refuse_other_families(fields: ConfigReader) -> None:
    fields.fixed(
        act_fn="silu",
        attention_type="default",
        center_input_sample=False,
        class_embed_type=None,
        class_embeddings_concat=False,
        conv_in_kernel=3,
        conv_out_kernel=3,
        cross_attention_norm=None,
        downsample_padding=1,
        dual_cross_attention=False,
        encoder_hid_dim=None,
        encoder_hid_dim_type=None,
        mid_block_only_cross_attention=None,
        mid_block_scale_factor=1,
        num_class_embeds=None,
        only_cross_attention=False,
        resnet_out_scale_factor=1.0,
        resnet_skip_time_act=False,
        resnet_time_scale_shift="default",
        reverse_transformer_layers_per_block=None,
        time_cond_proj_dim=None,
        time_embedding_act_fn=None,
        time_embedding_dim=None,
        time_embedding_type="positional",
        timestep_post_act=None,
    )
    # Linear or convolutional projections are the same product over channels-last maps, and
    # attention scores are float32 in any case.
    fields.ignored("use_linear_projection", "upcast_attention", "dropout")
    fields.ignored("addition_embed_type_num_heads")  # of an embedding refused above


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
        texts = [[attention.read(hidden) for attention in block.attentions] for block in blocks]
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
