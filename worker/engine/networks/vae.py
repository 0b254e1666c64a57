"""Define the autoencoder: diffusers' AutoencoderKL (Rombach et al. 2022).

It decodes latents to pixels in -1..1 and encodes pixels to latents. Latents are unscaled here: the
caller divides by `scaling_factor` before decoding and multiplies by it after encoding.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.config_reader import SILU_NAMES, ConfigReader, Json
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.networks.blocks import (
    GroupNorm,
    ResnetBlock,
    Upsample,
    conv,
    linear,
    normalize_and_convolve,
)

_EPSILON: Final = 1e-6
"""Every GroupNorm here has this epsilon. The resnets of Stable Diffusion's UNet have 1e-5."""


@dataclass(frozen=True, kw_only=True)
class VaeConfig:
    """It is `vae/config.json`. `block_out_channels` starts with the finest level."""

    in_channels: int
    out_channels: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int
    norm_num_groups: int
    scaling_factor: float
    shift_factor: float
    """It is subtracted from unscaled latents before they are multiplied."""
    latents_mean: tuple[float, ...] | None
    latents_std: tuple[float, ...] | None
    """Some models normalise the unscaled latents by the mean and the standard deviation of each
    channel. None means that the model only multiplies by `scaling_factor`."""
    use_quant_conv: bool
    use_post_quant_conv: bool
    mid_block_add_attention: bool

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """Read the config.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("vae/config.json", config)
        channels = fields.counts("block_out_channels", (64,))
        levels = len(channels)
        fields.choice("_use_default_values", None, (None, []))
        fields.choice("act_fn", "silu", SILU_NAMES)
        for name, block in (
            ("down_block_types", "DownEncoderBlock2D"),
            ("up_block_types", "UpDecoderBlock2D"),
        ):
            fields.choice(name, [block], ([block] * levels,))
        fields.ignore("sample_size", "force_upcast")
        latent_channels = fields.count("latent_channels", 4)
        mean = fields.numbers("latents_mean", length=latent_channels)
        std = fields.numbers("latents_std", length=latent_channels, above=0)
        if (mean is None) != (std is None):
            fields.add_error("latents_mean and latents_std must both be lists, or both be missing")
        checked = cls(
            in_channels=fields.choice("in_channels", 3, (3,)),
            out_channels=fields.choice("out_channels", 3, (3,)),
            latent_channels=latent_channels,
            latents_mean=mean,
            latents_std=std,
            block_out_channels=channels,
            layers_per_block=fields.count("layers_per_block", 1),
            norm_num_groups=fields.divisor("norm_num_groups", 32, of=channels),
            scaling_factor=fields.number("scaling_factor", 0.18215, above=0),
            shift_factor=_shift(fields),
            use_quant_conv=fields.flag("use_quant_conv", True),
            use_post_quant_conv=fields.flag("use_post_quant_conv", True),
            mid_block_add_attention=fields.flag("mid_block_add_attention", True),
        )
        fields.finish()
        return checked

    @property
    def downsampling(self) -> int:
        """Return the pixels per latent, along each side."""
        return 1 << (len(self.block_out_channels) - 1)


def _shift(fields: ConfigReader) -> float:
    """Return the shift, which is null in the files of many models."""
    return 0.0 if fields.get("shift_factor", None) is None else fields.number("shift_factor", 0.0)


class VaeAttention(nnx.Module):
    """It is diffusers' Attention of the autoencoder: self-attention of pixels, with one head."""

    def __init__(self, config: VaeConfig) -> None:
        width = config.block_out_channels[-1]
        self.group_norm = GroupNorm(width, config.norm_num_groups, _EPSILON)
        self.to_q = linear(width, width)
        self.to_k = linear(width, width)
        self.to_v = linear(width, width)
        self.to_out = linear(width, width)

    def __call__(self, x: FeatureMap) -> FeatureMap:
        batch, _, _, channels = shape = x.values.shape
        hidden = self.group_norm(x).reshape(batch, -1, channels)  # [b, h*w, c]
        q, k, v = self.to_q(hidden), self.to_k(hidden), self.to_v(hidden)
        return FeatureMap(x.values + self.to_out(attention(q, k, v, heads=1)).reshape(shape))


def _resnet(config: VaeConfig, channels_in: int, channels_out: int) -> ResnetBlock:
    return ResnetBlock(channels_in, channels_out, groups=config.norm_num_groups, epsilon=_EPSILON)


class VaeMidBlock(nnx.Module):
    """It is diffusers' UNetMidBlock2D."""

    def __init__(self, config: VaeConfig) -> None:
        width = config.block_out_channels[-1]
        self.resnets = nnx.List(_resnet(config, width, width) for _ in range(2))
        layers = range(int(config.mid_block_add_attention))
        self.attentions = nnx.List(VaeAttention(config) for _ in layers)

    def __call__(self, x: FeatureMap) -> FeatureMap:
        x = self.resnets[0](x)
        for layer in self.attentions:
            x = layer(x)
        return self.resnets[1](x)


class VaeDownsample(nnx.Module):
    """It is diffusers' Downsample2D with padding 0. It pads a row and a column at the end only."""

    def __init__(self, channels: int) -> None:
        self.conv = conv(channels, channels, stride=2, padding=(0, 1))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(x)


class VaeDownBlock(nnx.Module):
    """It is diffusers' DownEncoderBlock2D."""

    def __init__(self, config: VaeConfig, level: int) -> None:
        channels = config.block_out_channels
        width = channels[level]
        widths_in = [channels[max(level - 1, 0)], *[width] * (config.layers_per_block - 1)]
        self.resnets = nnx.List(_resnet(config, before, width) for before in widths_in)
        is_last = level == len(channels) - 1
        self.downsampler = None if is_last else VaeDownsample(width)

    def __call__(self, x: FeatureMap) -> FeatureMap:
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.downsampler is None else FeatureMap(self.downsampler(x.values))


class VaeUpBlock(nnx.Module):
    """It is diffusers' UpDecoderBlock2D."""

    def __init__(self, config: VaeConfig, level: int) -> None:
        channels = config.block_out_channels
        width = channels[level]
        below = channels[min(level + 1, len(channels) - 1)]
        widths_in = [below, *[width] * config.layers_per_block]
        self.resnets = nnx.List(_resnet(config, before, width) for before in widths_in)
        self.upsampler = None if level == 0 else Upsample(width)

    def __call__(self, x: FeatureMap) -> FeatureMap:
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.upsampler is None else self.upsampler(x.values)


class Encoder(nnx.Module):
    """It is diffusers' Encoder: pixels to the moments (mean and log-variance) of latents."""

    def __init__(self, config: VaeConfig) -> None:
        channels = config.block_out_channels
        self.conv_in = conv(config.in_channels, channels[0])
        self.down_blocks = nnx.List(VaeDownBlock(config, level) for level in range(len(channels)))
        self.mid_block = VaeMidBlock(config)
        self.conv_norm_out = GroupNorm(channels[-1], config.norm_num_groups, _EPSILON)
        self.conv_out = conv(channels[-1], 2 * config.latent_channels)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        x = FeatureMap(self.conv_in(pixels))
        for block in self.down_blocks:
            x = block(x)
        return normalize_and_convolve(self.conv_norm_out, self.conv_out, self.mid_block(x)).values


class Decoder(nnx.Module):
    """It is diffusers' Decoder: latents to pixels."""

    def __init__(self, config: VaeConfig) -> None:
        channels = config.block_out_channels
        self.conv_in = conv(config.latent_channels, channels[-1])
        self.mid_block = VaeMidBlock(config)
        self.up_blocks = nnx.List(
            VaeUpBlock(config, level) for level in reversed(range(len(channels)))
        )
        self.conv_norm_out = GroupNorm(channels[0], config.norm_num_groups, _EPSILON)
        self.conv_out = conv(channels[0], config.out_channels)

    def __call__(self, latents: jax.Array) -> jax.Array:
        x = self.mid_block(FeatureMap(self.conv_in(latents)))
        for block in self.up_blocks:
            x = block(x)
        return normalize_and_convolve(self.conv_norm_out, self.conv_out, x).values


def _quant_conv(channels: int, use: bool) -> nnx.Linear | None:
    return linear(channels, channels) if use else None


class Vae(nnx.Module):
    """It is diffusers' AutoencoderKL."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=(
            (r"\b(up|down)sampler\b", r"\1samplers.0"),
            (r"\bto_out\b", "to_out.0"),
        ),
        from_old=(
            (r"\battentions\.0\.query\b", "attentions.0.to_q"),
            (r"\battentions\.0\.key\b", "attentions.0.to_k"),
            (r"\battentions\.0\.value\b", "attentions.0.to_v"),
            (r"\battentions\.0\.proj_attn\b", "attentions.0.to_out.0"),
        ),
        old_in_shards=False,
    )

    def __init__(self, config: VaeConfig) -> None:
        self.encoder = Encoder(config)
        self.quant_conv = _quant_conv(2 * config.latent_channels, config.use_quant_conv)
        self.post_quant_conv = _quant_conv(config.latent_channels, config.use_post_quant_conv)
        self.decoder = Decoder(config)

    def decode(self, latents: jax.Array) -> jax.Array:
        """Decode unscaled latents `[b, h, w, latent_channels]`.

        Returns:
            Pixels `[b, f*h, f*w, 3]`, about -1..1, with f the `downsampling`.
        """
        return self.decoder(
            latents if self.post_quant_conv is None else self.post_quant_conv(latents)
        )

    def encode(self, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Encode pixels `[b, f*h, f*w, 3]` in -1..1, with f the `downsampling`.

        Returns:
            Mean and log-variance of the unscaled latents, each `[b, h, w, latent_channels]`.
        """
        moments = self.encoder(pixels)
        moments = moments if self.quant_conv is None else self.quant_conv(moments)
        mean, log_variance = jnp.split(moments, 2, axis=-1)
        return mean, jnp.clip(log_variance, -30.0, 20.0)
