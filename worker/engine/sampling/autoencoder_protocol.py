"""Define what the programs ask of a model's autoencoder.

Axes: b images, h w latent size, H W pixels, c latent channels.
"""

from typing import Protocol

import jax


class Autoencoder(Protocol):
    """It maps between pixels and latents that `LatentScale` has not scaled."""

    def decode(self, latents: jax.Array) -> jax.Array:
        """Return pixels `[b, H, W, 3]`, about -1..1, for latents `[b, h, w, c]`."""

    def encode(self, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return mean and log-variance of latents, `[b, h, w, c]` each, for pixels in -1..1."""
