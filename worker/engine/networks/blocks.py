"""Define layers and blocks that several networks share, as in diffusers but channels last.

Input and output are feature maps `[batch, height, width, channels]`. Attribute names are those of
the checkpoints, so that the tables in `worker.engine.checkpoint.weights` stay short.
"""

from collections.abc import Callable
from typing import Final, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from imagefleet.worker.engine.kernels.convolution import convolve, convolve_upsampled, upsample
from imagefleet.worker.engine.kernels.feature_map import FeatureMap, mean_of_pixels
from imagefleet.worker.engine.kernels.large_convolution import find_kernel
from imagefleet.worker.engine.networks.unset_weights import ones, unset, zeros
from imagefleet.worker.engine.placement.mesh import is_bfloat16_on_tpu

Layer = Callable[[jax.Array], jax.Array]
"""It is a linear layer or a convolution, perhaps with LoRA beside it (`lora_layers`)."""


class _NoKeys:
    """It replaces `nnx.Rngs`, which takes seconds for hundreds of layers."""

    def params(self) -> None:
        """Return the random key, which `unset` ignores."""


def _no_keys() -> nnx.Rngs:
    return cast(nnx.Rngs, _NoKeys())


def linear(channels_in: int, channels_out: int, *, use_bias: bool = True) -> nnx.Linear:
    """Return a dense layer over the last axis."""
    return nnx.Linear(
        channels_in,
        channels_out,
        use_bias=use_bias,
        kernel_init=unset,
        bias_init=unset,
        rngs=_no_keys(),
    )


def embedding(count: int, width: int) -> nnx.Embed:
    """Return an embedding of `count` ids."""
    return nnx.Embed(count, width, embedding_init=unset, rngs=_no_keys())


def conv(
    channels_in: int,
    channels_out: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    padding: tuple[int, int] = (1, 1),
    use_bias: bool = True,
) -> nnx.Conv:
    """Return a square convolution; `padding` is added before and after, along each axis."""
    return nnx.Conv(
        channels_in,
        channels_out,
        (kernel, kernel),
        strides=stride,
        padding=(padding, padding),
        use_bias=use_bias,
        kernel_init=unset,
        bias_init=unset,
        conv_general_dilated=convolve,
        rngs=_no_keys(),
    )


class GroupNorm(nnx.Module):
    """Group normalisation (Wu & He 2018) as in torch: in float32, the variance is E[(x - mean)²].

    On TPU the variance of maps in bfloat16 is E[x²] - mean², so that a map is read once, or not at
    all if it carries its means.

    The means run over pixels first and over a group's channels last. This vectorises, while flax's
    GroupNorm splits the channel axis: a step of a 128-256-256 UNet takes 3 % less CPU time.
    """

    def __init__(self, channels: int, groups: int, epsilon: float) -> None:
        self.scale = nnx.Param(ones(channels))
        self.bias = nnx.Param(zeros(channels))
        self.groups = groups
        self.epsilon = epsilon

    def __call__(self, x: FeatureMap) -> jax.Array:
        """Return the normalised values `[b, ..., c]`."""
        dtype, wide = x.values.dtype, x.values.astype(jnp.float32)
        if is_bfloat16_on_tpu(x.values):
            shape = (len(wide), *[1] * (wide.ndim - 2), wide.shape[-1])
            factor, shift = (each.reshape(shape) for each in self.scale_and_shift(x))
            return (wide * factor + shift).astype(dtype)
        centred = wide - self._group_mean(wide)
        inverse = jax.lax.rsqrt(self._group_mean(jnp.square(centred)) + self.epsilon)
        scale, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        return (centred * (inverse * scale) + bias).astype(dtype)

    def scale_and_shift(self, x: FeatureMap) -> tuple[jax.Array, jax.Array]:
        """Return float32 `[b, c]` each: the norm of the map is values * scale + shift.

        The means of values and squares are in float32. This is for bfloat16: rounding the values
        loses more than the difference of the two means does.
        """
        mean, square = (self._mean_of_groups(each) for each in x.pixel_means())
        inverse = jax.lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0) + self.epsilon)
        weights, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        scale = inverse * weights
        return scale, bias - mean * scale

    def _group_mean(self, x: jax.Array) -> jax.Array:
        """Average over all pixels and each group's channels: `[b, ..., c]` to `[b, 1, ..., c]`."""
        batch, *pixels, channels = x.shape
        means = self._mean_of_groups(mean_of_pixels(x))
        return means.reshape(batch, *[1] * len(pixels), channels)

    def _mean_of_groups(self, means: jax.Array) -> jax.Array:
        """Average `[b, c]` over each group's channels, and repeat the average for each of them."""
        batch, channels = means.shape
        groups = means.reshape(batch, self.groups, -1).mean(-1)
        return jnp.repeat(groups, channels // self.groups, axis=1)


def normalize_and_convolve(
    norm: GroupNorm,
    layer: Layer,
    x: FeatureMap,
    *,
    offset: jax.Array | None = None,
    residual: jax.Array | None = None,
) -> FeatureMap:
    """Return `layer(silu(norm(x)))`, with `offset` and `residual` added to it.

    Args:
        norm: Of the channels of `x`.
        layer: A 3x3 convolution with padding 1 and a bias.
        x: `[b, h, w, c]`.
        offset: `[b, o]`: one number for each image and channel.
        residual: `[b, h, w, o]`.
    """
    if isinstance(layer, nnx.Conv) and layer.bias is not None:
        kernel, bias, has_residual = layer.kernel[...], layer.bias[...], residual is not None
        if (compute := find_kernel(x.values, kernel, has_residual=has_residual)) is not None:
            bias = bias if offset is None else bias + offset
            normalize = norm.scale_and_shift(x)
            return compute(x.values, kernel, bias, normalize=normalize, residual=residual)
    hidden = layer(jax.nn.silu(norm(x)))
    if offset is not None:
        hidden += offset[:, None, None, :]
    return FeatureMap(hidden if residual is None else hidden + residual)


_GELU_TERMS: Final = (7.97507877e-01, 3.70056525e-02, -3.51517965e-04)
"""Coefficients of p in Φ(x) ≈ 0.5 + 0.5 tanh(x p(x²)), where x² is at most `_GELU_MAX_SQUARE`. They
are fitted: x Φ(x) is wrong by 2.6e-5 at most."""
_GELU_MAX_SQUARE: Final = 25.0


def gelu(x: jax.Array) -> jax.Array:
    """Return x Φ(x) (Hendrycks & Gimpel 2016), by the error function as in torch.

    `jax.nn.gelu` uses the complementary error function, which is slower on CPU. A TPU has no error
    function and takes twice as many operations for it as for a tanh with `_GELU_TERMS`.
    """
    if is_bfloat16_on_tpu(x):
        return gelu_by_tanh(x.astype(jnp.float32)).astype(x.dtype)
    return 0.5 * x * (1 + jax.lax.erf(x * np.sqrt(0.5).astype(x.dtype)))


def gelu_by_tanh(x: jax.Array) -> jax.Array:
    """Return x Φ(x) within 2.6e-5, for float32."""
    square = jnp.minimum(x * x, _GELU_MAX_SQUARE)
    first, second, third = _GELU_TERMS
    return x * (0.5 + 0.5 * jnp.tanh(x * (first + square * (second + square * third))))


class LayerNorm(nnx.Module):
    """Layer normalisation (Ba et al. 2016) as in torch: in float32, the variance is E[(x - mean)²].

    On TPU the variance of arrays in bfloat16 is E[x²] - mean², so that the compiler can compute the
    sums of x and x² together with the product that makes x.
    """

    def __init__(self, channels: int, epsilon: float) -> None:
        self.scale = nnx.Param(ones(channels))
        self.bias = nnx.Param(zeros(channels))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the normalised `x [..., c]`."""
        wide = x.astype(jnp.float32)
        mean, variance = _mean_and_variance(x, wide)
        factor = jax.lax.rsqrt(variance + self.epsilon) * self.scale[...]
        return ((wide - mean) * factor + self.bias[...]).astype(x.dtype)


def normalize(x: jax.Array, epsilon: float) -> jax.Array:
    """Return `x [..., c]` with mean 0 and variance 1 over its channels, computed in float32 as
    `LayerNorm` does."""
    wide = x.astype(jnp.float32)
    mean, variance = _mean_and_variance(x, wide)
    return ((wide - mean) * jax.lax.rsqrt(variance + epsilon)).astype(x.dtype)


def _mean_and_variance(x: jax.Array, wide: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return those of the channels of `x [..., c]`, which is `wide` in float32."""
    mean = wide.mean(-1, keepdims=True)
    if is_bfloat16_on_tpu(x):
        square = jnp.square(wide).mean(-1, keepdims=True)
        return mean, jnp.maximum(square - jnp.square(mean), 0)
    return mean, jnp.square(wide - mean).mean(-1, keepdims=True)


class RmsNorm(nnx.Module):
    """Root mean square normalisation (Zhang & Sennrich 2019), in float32 as in transformers."""

    def __init__(self, channels: int, epsilon: float) -> None:
        self.scale = nnx.Param(ones(channels))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the normalised `x [..., c]`."""
        wide = x.astype(jnp.float32)
        square = jnp.square(wide).mean(-1, keepdims=True)
        return (wide * jax.lax.rsqrt(square + self.epsilon)).astype(x.dtype) * self.scale[...]


class ResnetBlock(nnx.Module):
    """It is diffusers' ResnetBlock2D: two convolutions with a time embedding, and a shortcut."""

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
        is_resized = channels_in != channels_out
        self.conv_shortcut = linear(channels_in, channels_out) if is_resized else None

    def __call__(
        self, x: FeatureMap, time: jax.Array | None = None, *, skip: FeatureMap | None = None
    ) -> FeatureMap:
        """Return `[b, h, w, channels_out]` from `x [b, h, w, c]`.

        `time [b, e]` is the time embedding, if the block was built with `time_channels`. `skip [b,
        h, w, s]` is the output of an earlier block, which is put beside `x`.
        """
        x = x if skip is None else FeatureMap.join(x, skip)
        offset = None
        if self.time_emb_proj is not None and time is not None:
            offset = self.time_emb_proj(jax.nn.silu(time))
        hidden = normalize_and_convolve(self.norm1, self.conv1, x, offset=offset)
        shortcut = x.values if self.conv_shortcut is None else self.conv_shortcut(x.values)
        return normalize_and_convolve(self.norm2, self.conv2, hidden, residual=shortcut)


class Upsample(nnx.Module):
    """It is diffusers' Upsample2D: nearest-neighbour upsampling by 2, then a convolution."""

    def __init__(self, channels: int) -> None:
        self.conv: Layer = conv(channels, channels)

    def __call__(self, x: jax.Array) -> FeatureMap:
        if isinstance(self.conv, nnx.Conv) and self.conv.bias is not None:
            return convolve_upsampled(x, self.conv.kernel[...], self.conv.bias[...])
        # LoRA beside the convolution read the upsampled map.
        return FeatureMap(self.conv(upsample(x)))
