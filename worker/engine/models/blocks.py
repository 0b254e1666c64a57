"""Blocks that the UNet and the autoencoder share, in diffusers' definitions, channels last.

Goes in: feature maps `[batch, height, width, channels]`. Comes out: the same. Attribute names are
the checkpoint's, so that `worker.engine.names` stays short.
"""

import jax
import jax.numpy as jnp
from flax import nnx


def conv(
    channels_in: int, channels_out: int, *, kernel: int = 3, stride: int = 1, rngs: nnx.Rngs
) -> nnx.Conv:
    """A square convolution that keeps the size at stride 1."""
    border = (kernel - 1) // 2
    return nnx.Conv(
        channels_in,
        channels_out,
        (kernel, kernel),
        strides=stride,
        padding=((border, border), (border, border)),
        rngs=rngs,
    )


def group_norm(channels: int, groups: int, epsilon: float, rngs: nnx.Rngs) -> nnx.GroupNorm:
    """GroupNorm as torch computes it: statistics in float32, variance from centred values."""
    return nnx.GroupNorm(
        channels, num_groups=groups, epsilon=epsilon, use_fast_variance=False, rngs=rngs
    )


def layer_norm(channels: int, epsilon: float, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm as torch computes it: statistics in float32, variance from centred values."""
    return nnx.LayerNorm(channels, epsilon=epsilon, use_fast_variance=False, rngs=rngs)


class ResnetBlock(nnx.Module):
    """ResnetBlock2D: two convolutions around the time embedding, and a shortcut."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        *,
        groups: int,
        epsilon: float,
        time_channels: int | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm1 = group_norm(channels_in, groups, epsilon, rngs)
        self.conv1 = conv(channels_in, channels_out, rngs=rngs)
        self.time_emb_proj = (
            nnx.Linear(time_channels, channels_out, rngs=rngs) if time_channels else None
        )
        self.norm2 = group_norm(channels_out, groups, epsilon, rngs)
        self.conv2 = conv(channels_out, channels_out, rngs=rngs)
        # A 1x1 convolution over channels-last maps is a matrix product.
        changes = channels_in != channels_out
        self.conv_shortcut = nnx.Linear(channels_in, channels_out, rngs=rngs) if changes else None

    def __call__(self, x: jax.Array, time: jax.Array | None = None) -> jax.Array:
        """`x [b, h, w, c]`, `time [b, e]` if the block was built with `time_channels`."""
        hidden = self.conv1(jax.nn.silu(self.norm1(x)))
        if self.time_emb_proj is not None and time is not None:
            hidden += self.time_emb_proj(jax.nn.silu(time))[:, None, None, :]
        hidden = self.conv2(jax.nn.silu(self.norm2(hidden)))
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Upsample(nnx.Module):
    """Upsample2D: every pixel four times, then a convolution."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs) -> None:
        self.conv = conv(channels, channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
