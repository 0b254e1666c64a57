"""Define the autoencoder of FLUX.2: diffusers' AutoencoderKLFlux2.

Input and output are latents as the transformer takes them: squares of 2x2 are packed into one,
and the channels of the packed latents are normalised by the mean and the variance that were
collected in training (Ioffe & Szegedy 2015).

Axes: b images, h w size in packed latents, c their channels, f pixels along the side of one.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.latent_packing import PATCH, pack, unpack
from imagefleet.worker.engine.networks.unset_weights import ones, zeros
from imagefleet.worker.engine.networks.vae import Decoder, Encoder, Vae, VaeConfig

_LEVELS: Final = (128, 256, 512, 512)
_DEFAULTS: Final[dict[str, Any]] = {
    "block_out_channels": _LEVELS,
    "down_block_types": ["DownEncoderBlock2D"] * len(_LEVELS),
    "up_block_types": ["UpDecoderBlock2D"] * len(_LEVELS),
    "layers_per_block": 2,
    "latent_channels": 32,
}
"""diffusers' defaults, where AutoencoderKL has others."""


@dataclass(frozen=True, kw_only=True)
class Flux2VaeConfig:
    """It is `vae/config.json`."""

    encoder: VaeConfig
    decoder: VaeConfig
    """It differs from `encoder` in its `block_out_channels` at most."""
    batch_norm_eps: float

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """Read the config.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("vae/config.json", config)
        # It has an effect in training only.
        fields.ignore(*config, "batch_norm_momentum")
        fields.choice("patch_size", [PATCH, PATCH], ([PATCH, PATCH],))
        epsilon = fields.number("batch_norm_eps", 1e-4, above=0)
        own = ("patch_size", "batch_norm_eps", "batch_norm_momentum", "decoder_block_out_channels")
        common = {name: value for name, value in config.items() if name not in own}
        encoder = VaeConfig.from_json({**_DEFAULTS, **common})
        channels = encoder.block_out_channels
        if fields.get("decoder_block_out_channels", None):
            channels = fields.counts("decoder_block_out_channels", channels)
        fields.divisor("norm_num_groups", 32, of=channels)
        if len(channels) != len(encoder.block_out_channels):
            fields.add_error(
                f"decoder_block_out_channels={list(channels)} must have as many numbers as "
                f"block_out_channels={list(encoder.block_out_channels)}"
            )
        fields.finish()
        decoder = replace(encoder, block_out_channels=channels)
        return cls(encoder=encoder, decoder=decoder, batch_norm_eps=epsilon)

    @property
    def packed_channels(self) -> int:
        """Return the channels of a packed latent."""
        return PATCH * PATCH * self.encoder.latent_channels

    @property
    def pixels_per_latent(self) -> int:
        """Return the pixels that a packed latent stands for, along each side."""
        return self.encoder.downsampling * PATCH


class RunningStatistics(nnx.Module):
    """It is torch's BatchNorm2d in inference, without weights: what training collected."""

    def __init__(self, channels: int, epsilon: float) -> None:
        self.running_mean = nnx.Param(zeros(channels))
        self.running_var = nnx.Param(ones(channels))
        self.epsilon = epsilon

    @property
    def mean(self) -> jax.Array:
        """Return the mean of each channel, float32."""
        return self.running_mean[...].astype(jnp.float32)

    @property
    def deviation(self) -> jax.Array:
        """Return the standard deviation of each channel, float32."""
        return jnp.sqrt(self.running_var[...].astype(jnp.float32) + self.epsilon)


class Flux2Vae(nnx.Module):
    """It is diffusers' AutoencoderKLFlux2, with the packing of its pipelines."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=Vae.weight_names.to_checkpoint,
        buffers=frozenset({"bn.num_batches_tracked"}),
    )

    def __init__(self, config: Flux2VaeConfig) -> None:
        channels = config.encoder.latent_channels
        uses_quant, uses_post_quant = (
            config.encoder.use_quant_conv,
            config.encoder.use_post_quant_conv,
        )
        self.encoder = Encoder(config.encoder)
        self.quant_conv = linear(2 * channels, 2 * channels) if uses_quant else None
        self.post_quant_conv = linear(channels, channels) if uses_post_quant else None
        self.decoder = Decoder(config.decoder)
        self.bn = RunningStatistics(config.packed_channels, config.batch_norm_eps)

    def decode(self, latents: jax.Array) -> jax.Array:
        """Decode normalised, packed latents `[b, h, w, c]`.

        Returns:
            Pixels `[b, f*h, f*w, 3]`, about -1..1.
        """
        packed = latents.astype(jnp.float32) * self.bn.deviation + self.bn.mean
        unpacked = unpack(packed.astype(latents.dtype))
        if self.post_quant_conv is not None:
            unpacked = self.post_quant_conv(unpacked)
        return self.decoder(unpacked)

    def encode(self, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Encode pixels `[b, f*h, f*w, 3]` in -1..1.

        Returns:
            Mean and log-variance of the normalised, packed latents, float32 `[b, h, w, c]` each.
        """
        moments = self.encoder(pixels)
        moments = moments if self.quant_conv is None else self.quant_conv(moments)
        mean, log_variance = jnp.split(moments.astype(jnp.float32), 2, axis=-1)
        deviation = self.bn.deviation
        log_variance = pack(jnp.clip(log_variance, -30.0, 20.0)) - 2 * jnp.log(deviation)
        return (pack(mean) - self.bn.mean) / deviation, log_variance
