"""Blocks that the UNet and the autoencoder share, in diffusers' definitions, channels last.

Goes in: feature maps `[batch, height, width, channels]`. Comes out: the same. Attribute names are
the checkpoint's, so that the tables in `worker.engine.checkpoint.weights` stay short.
"""

from typing import Final, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

_UNSET: Final = nnx.initializers.zeros
"""Weights come from a checkpoint, so nothing is ever drawn."""


class _NoKeys:
    """Stands for `nnx.Rngs`, whose bookkeeping takes seconds over hundreds of layers."""

    def params(self) -> None:
        """The key that `_UNSET` does not look at."""


def _no_keys() -> nnx.Rngs:
    return cast(nnx.Rngs, _NoKeys())


def linear(channels_in: int, channels_out: int, *, use_bias: bool = True) -> nnx.Linear:
    """A dense layer over the last axis."""
    return nnx.Linear(
        channels_in, channels_out, use_bias=use_bias, kernel_init=_UNSET, rngs=_no_keys()
    )


def embedding(count: int, width: int) -> nnx.Embed:
    """A row for each of `count` ids."""
    return nnx.Embed(count, width, embedding_init=_UNSET, rngs=_no_keys())


def conv(
    channels_in: int,
    channels_out: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    border: tuple[int, int] = (1, 1),
    use_bias: bool = True,
) -> nnx.Conv:
    """A square convolution; `border` is what it adds before and after, along each axis."""
    return nnx.Conv(
        channels_in,
        channels_out,
        (kernel, kernel),
        strides=stride,
        padding=(border, border),
        use_bias=use_bias,
        kernel_init=_UNSET,
        rngs=_no_keys(),
    )


class GroupNorm(nnx.Module):
    """Wu & He 2018, as torch computes it: in float32, variance from centred values.

    Sums run over pixels first and over a group's channels last, which vectorises where flax's own
    splits the channel axis: a step of a 128-256-256 UNet takes 3 % less CPU time.
    """

    def __init__(self, channels: int, groups: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.groups = groups
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x [b, ..., c]`"""
        wide = x.astype(jnp.float32)
        centred = wide - self._group_mean(wide)
        inverse = jax.lax.rsqrt(self._group_mean(jnp.square(centred)) + self.epsilon)
        scale, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        return (centred * (inverse * scale) + bias).astype(x.dtype)

    def _group_mean(self, x: jax.Array) -> jax.Array:
        """`[b, ..., c]` to `[b, 1, ..., c]`: over all pixels and the channels of each group."""
        batch, *pixels, channels = x.shape
        sums = x.mean(range(1, x.ndim - 1)).reshape(batch, self.groups, -1)
        means = jnp.repeat(sums.mean(-1), channels // self.groups, axis=1)
        return means.reshape(batch, *[1] * len(pixels), channels)


def gelu(x: jax.Array) -> jax.Array:
    """x Φ(x) (Hendrycks & Gimpel 2016) by the error function, as torch computes it;
    `jax.nn.gelu` takes the complementary one, which is slower on CPU."""
    return 0.5 * x * (1 + jax.lax.erf(x * np.sqrt(0.5).astype(x.dtype)))


def layer_norm(channels: int, epsilon: float) -> nnx.LayerNorm:
    """LayerNorm as torch computes it: statistics in float32, variance from centred values."""
    return nnx.LayerNorm(channels, epsilon=epsilon, use_fast_variance=False, rngs=_no_keys())


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
    ) -> None:
        self.norm1 = GroupNorm(channels_in, groups, epsilon)
        self.conv1 = conv(channels_in, channels_out)
        self.time_emb_proj = linear(time_channels, channels_out) if time_channels else None
        self.norm2 = GroupNorm(channels_out, groups, epsilon)
        self.conv2 = conv(channels_out, channels_out)
        # A 1x1 convolution over channels-last maps is a matrix product.
        changes = channels_in != channels_out
        self.conv_shortcut = linear(channels_in, channels_out) if changes else None

    def __call__(self, x: jax.Array, time: jax.Array | None = None) -> jax.Array:
        """`x [b, h, w, c]`, `time [b, e]` if the block was built with `time_channels`."""
        hidden = self.conv1(jax.nn.silu(self.norm1(x)))
        if self.time_emb_proj is not None and time is not None:
            hidden += self.time_emb_proj(jax.nn.silu(time))[:, None, None, :]
        hidden = self.conv2(jax.nn.silu(self.norm2(hidden)))
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Upsample(nnx.Module):
    """Upsample2D: every pixel four times, then a convolution."""

    def __init__(self, channels: int) -> None:
        self.conv = conv(channels, channels)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
