"""Scale latents between the autoencoder and the denoiser.

Input: latents `[…, c]` of one of them. Output: the latents that the other one takes.
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.networks.vae import VaeConfig


@dataclass(frozen=True)
class LatentScale:
    """It says how a model scales the latents of its autoencoder."""

    factor: float
    shift: float = 0.0
    """It is subtracted from the encoder's latents before they are multiplied."""
    mean: tuple[float, ...] | None = None
    """It is the mean of each channel of the unscaled latents. None means that they are only
    multiplied by the factor."""
    std: tuple[float, ...] | None = None

    @classmethod
    def of(cls, config: VaeConfig) -> Self:
        """Return the scale of an autoencoder."""
        return cls(
            factor=config.scaling_factor,
            shift=config.shift_factor,
            mean=config.latents_mean,
            std=config.latents_std,
        )

    def describe(self) -> str:
        """Return the scale in words that are equal for equal scales: `scaling_factor=0.13025`."""
        fields = {"latents_mean": self.mean, "latents_std": self.std}
        given = [f"{name}={list(values)}" for name, values in fields.items() if values is not None]
        shift = [f"shift_factor={self.shift}"] if self.shift else []
        return ", ".join([f"scaling_factor={self.factor}", *shift, *given])

    def scale(self, latents: jax.Array) -> jax.Array:
        """Return the denoiser's latents for those of the encoder."""
        latents = latents - self.shift if self.shift else latents
        if self.mean is None or self.std is None:
            return latents * self.factor
        return (latents - jnp.array(self.mean)) * self.factor / jnp.array(self.std)

    def unscale(self, latents: jax.Array) -> jax.Array:
        """Return the decoder's latents for those of the denoiser."""
        if self.mean is None or self.std is None:
            unscaled = latents / self.factor
        else:
            unscaled = latents * jnp.array(self.std) / self.factor + jnp.array(self.mean)
        return unscaled + self.shift if self.shift else unscaled
