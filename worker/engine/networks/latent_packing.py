"""Pack squares of latents into one, as the pipelines of FLUX do, or into patches.

Input and output are latents, channels last. Nothing else is computed.

Axes: b images, h w size in packed latents, c their channels.
"""

from typing import Final

import jax

PATCH: Final = 2
"""A packed latent has a square of latents with this side."""


def pack(latents: jax.Array) -> jax.Array:
    """Reshape latents `[b, 2h, 2w, c / 4]` to `[b, h, w, c]`. As in diffusers, the four numbers of
    a channel lie side by side."""
    batch, height, width, channels = latents.shape
    x = latents.reshape(batch, height // PATCH, PATCH, width // PATCH, PATCH, channels)
    return x.transpose(0, 1, 3, 5, 2, 4).reshape(batch, height // PATCH, width // PATCH, -1)


def unpack(latents: jax.Array) -> jax.Array:
    """Undo `pack`."""
    batch, height, width, _ = latents.shape
    x = latents.reshape(batch, height, width, -1, PATCH, PATCH)
    return x.transpose(0, 1, 4, 2, 5, 3).reshape(batch, height * PATCH, width * PATCH, -1)


def split_patches(latents: jax.Array) -> jax.Array:
    """Reshape latents `[b, 2h, 2w, c / 4]` to patches `[b, h w, c]`, in which the channels of a
    latent lie side by side."""
    batch, height, width, channels = latents.shape
    x = latents.reshape(batch, height // PATCH, PATCH, width // PATCH, PATCH, channels)
    return x.swapaxes(2, 3).reshape(batch, -1, PATCH * PATCH * channels)


def join_patches(patches: jax.Array, rows: int, columns: int) -> jax.Array:
    """Undo `split_patches`."""
    x = patches.reshape(len(patches), rows, columns, PATCH, PATCH, -1).swapaxes(2, 3)
    return x.reshape(len(patches), rows * PATCH, columns * PATCH, -1)
