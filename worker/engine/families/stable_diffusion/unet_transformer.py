"""Define the transformers within the blocks of the UNet: diffusers' Transformer2DModel and its
layers.

Input: a feature map `[b, h, w, c]` and the keys and values of the text. Output: a map of the same
shape.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.kernels.feed_forward import add_feed_forward, uses_kernel
from imagefleet.worker.engine.kernels.feed_forward_spec import FeedForwardWeights
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.head_projection import project_heads, projects_by_kernel
from imagefleet.worker.engine.kernels.head_projection_spec import HeadProjection, LowRank
from imagefleet.worker.engine.kernels.packed_attention import attend_packed, find_packing
from imagefleet.worker.engine.networks.blocks import (
    GroupNorm,
    Layer,
    LayerNorm,
    gelu,
    gelu_by_tanh,
    linear,
)
from imagefleet.worker.engine.networks.lora_layers import split_layer


class ContextKV(NamedTuple):
    """It has keys and values of one attention layer for a context, each `[b, n, c]`."""

    key: jax.Array
    value: jax.Array
    mask: jax.Array | None = None
    """bool `[b, n]`: the keys that are used. None means that all are used."""


class Attention(nnx.Module):
    """It is diffusers' Attention: self-attention of the pixels, or cross-attention to the text."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        self.heads = heads
        self.to_q = linear(width, width, use_bias=False)
        self.to_k = linear(context_width, width, use_bias=False)
        self.to_v = linear(context_width, width, use_bias=False)
        self.to_out: Layer = linear(width, width)

    def project_context(self, context: jax.Array) -> ContextKV:
        """Return keys and values of `context [b, n, d]`."""
        return ContextKV(self.to_k(context), self.to_v(context))

    def __call__(self, x: jax.Array, norm: LayerNorm, context: ContextKV) -> jax.Array:
        """Map `x [b, h*w, c]`, which `norm` normalises, to `[b, h*w, c]`."""
        key, value, mask = context
        packing = None
        if mask is None:
            packing = find_packing(x, keys=key.shape[1], heads=self.heads)
        if packing is None:
            query = self.to_q(norm(x))
            return self.to_out(attention(query, key, value, heads=self.heads, mask=mask))
        [queries] = _project(x, norm, [self._to_queries(packing)])
        values = packing.pack_rows(value).mT
        attended = attend_packed(queries, packing.pack_lanes(key), values, packing)
        return _project_out(self.to_out, attended, packing)

    def attend_to_itself(self, x: jax.Array, norm: LayerNorm) -> jax.Array:
        """Map `x [b, h*w, c]`, which `norm` normalises, to `[b, h*w, c]` by self-attention."""
        packing = find_packing(x, keys=x.shape[1], heads=self.heads)
        if packing is None:
            normalized = norm(x)
            key, value, _ = self.project_context(normalized)
            query = self.to_q(normalized)
            return self.to_out(attention(query, key, value, heads=self.heads))
        queries, keys, values = _project(
            x,
            norm,
            [
                self._to_queries(packing),
                _Projection(self.to_k, packing.pack_lanes, is_turned=False),
                _Projection(self.to_v, packing.pack_rows, is_turned=True),
            ],
        )
        return _project_out(self.to_out, attend_packed(queries, keys, values, packing), packing)

    def _to_queries(self, packing: HeadPacking) -> "_Projection":
        scale = packing.query_scale
        return _Projection(self.to_q, packing.pack_lanes, is_turned=True, scale=scale)


class _Projection(NamedTuple):
    """It is a projection to packed heads."""

    layer: Layer
    """It has no bias."""
    pack: Callable[[jax.Array], jax.Array]
    """It puts the last axis, `heads * head_dim`, into the rows or lanes of the kernel."""
    is_turned: bool
    """Whether the result is `[b, r, n]` in place of `[b, n, r]`."""
    scale: float = 1.0
    """The result is multiplied with it before the rounding."""

    def by_kernel(self) -> HeadProjection:
        """Return it as the kernel takes it."""
        plain, lora = split_layer(self.layer)
        added = None
        if lora is not None:
            added = LowRank(down=lora.factors.down, up=self.pack(lora.factors.up))
        return HeadProjection(
            matrix=self.pack(plain.kernel[...]),
            lora=added,
            is_turned=self.is_turned,
            scale=self.scale,
        )


def _project(
    x: jax.Array, norm: LayerNorm, projections: Sequence[_Projection]
) -> Sequence[jax.Array]:
    """Normalise `x [b, n, c]` and project it."""
    loras = [split_layer(each.layer)[1] for each in projections]
    columns = max(0 if lora is None else lora.factors.down.shape[-1] for lora in loras)
    if not projects_by_kernel(x, columns):
        normalized = norm(x)
        return [_project_by_xla(normalized, each) for each in projections]
    scales = [None if lora is None else lora.scales_of(len(x)) for lora in loras]
    by_kernel = [each.by_kernel() for each in projections]
    vectors = (norm.scale[...], norm.bias[...])
    return project_heads(x, vectors, by_kernel, scales, epsilon=norm.epsilon)


def _project_by_xla(x: jax.Array, projection: _Projection) -> jax.Array:
    plain, lora = split_layer(projection.layer)
    order = "brn" if projection.is_turned else "bnr"
    result = _multiply(f"bnc,cr->{order}", x, projection.pack(plain.kernel[...]))
    if lora is not None:
        hidden = lora.scale_columns(x @ lora.factors.down)
        result += _multiply(f"bnk,kr->{order}", hidden, projection.pack(lora.factors.up))
    return (result * projection.scale).astype(x.dtype)


def _project_out(layer: Layer, attended: jax.Array, packing: HeadPacking) -> jax.Array:
    """Project the rows of the kernel, `[b, r, n]`, to `[b, n, c]`."""

    def multiply(matrix: jax.Array) -> jax.Array:
        return _multiply("brn,cr->bnc", attended, packing.pack_rows(matrix.T))

    plain, lora = split_layer(layer)
    result = multiply(plain.kernel[...])
    if lora is not None:
        hidden = lora.scale_columns(multiply(lora.factors.down).astype(attended.dtype))
        result += _multiply("bnk,kc->bnc", hidden, lora.factors.up)
    assert plain.bias is not None
    return (result + plain.bias[...]).astype(attended.dtype)


def _multiply(axes: str, x: jax.Array, matrix: jax.Array) -> jax.Array:
    return jnp.einsum(axes, x, matrix, preferred_element_type=jnp.float32)


class FeedForward(nnx.Module):
    """It is diffusers' FeedForward: GEGLU (Shazeer 2020), with GELU by the error function."""

    def __init__(self, width: int) -> None:
        self.proj_in: Layer = linear(width, 8 * width)
        self.proj_out: Layer = linear(4 * width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        value, gate = jnp.split(self.proj_in(x), 2, axis=-1)
        return self.proj_out(value * gelu(gate))

    def add_to(self, x: jax.Array, norm: LayerNorm) -> jax.Array:
        """Return x + ff(norm(x)) for `x [b, h*w, c]`."""
        first, second = self.proj_in, self.proj_out
        if not (isinstance(first, nnx.Linear) and isinstance(second, nnx.Linear)):
            return x + self(norm(x))  # with LoRA of jobs
        assert first.bias is not None
        assert second.bias is not None
        if not uses_kernel(x, second.in_features):
            return x + self(norm(x))
        weights = FeedForwardWeights(
            scale=norm.scale[...],
            shift=norm.bias[...],
            proj_in=first.kernel[...],
            bias_in=first.bias[...],
            proj_out=second.kernel[...],
            bias_out=second.bias[...],
        )
        return add_feed_forward(x, weights, epsilon=norm.epsilon, activation=gelu_by_tanh)


class TransformerBlock(nnx.Module):
    """It is diffusers' BasicTransformerBlock: self-attention, cross-attention, feed-forward."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        self.norm1 = LayerNorm(width, 1e-5)
        self.attn1 = Attention(width, width, heads)
        self.norm2 = LayerNorm(width, 1e-5)
        self.attn2 = Attention(width, context_width, heads)
        self.norm3 = LayerNorm(width, 1e-5)
        self.ff = FeedForward(width)

    def __call__(self, x: jax.Array, context: ContextKV) -> jax.Array:
        """Map `x [b, h*w, c]` to `[b, h*w, c]`; `context` is from `attn2.project_context`."""
        x += self.attn1.attend_to_itself(x, self.norm1)
        x += self.attn2(x, self.norm2, context)
        return self.ff.add_to(x, self.norm3)


BlockContext = Sequence[Sequence[ContextKV]]
"""It has the keys and values of the text: for each transformer of a UNet block, those of each
layer."""


class Transformer(nnx.Module):
    """It is diffusers' Transformer2DModel: transformer layers over the pixels of a feature map."""

    def __init__(self, config: UNetConfig, level: int, layers: int) -> None:
        width = config.block_out_channels[level]
        # diffusers uses 1e-6 here, but norm_eps in the resnets.
        self.norm = GroupNorm(width, config.norm_num_groups, 1e-6)
        self.proj_in = linear(width, width)
        self.transformer_blocks = nnx.List(
            TransformerBlock(width, config.cross_attention_dim, config.heads[level])
            for _ in range(layers)
        )
        self.proj_out = linear(width, width)

    def project_context(self, encoder_hidden_states: jax.Array) -> list[ContextKV]:
        """Return the keys and values of each layer for `encoder_hidden_states [b, n, d]`."""
        return [
            block.attn2.project_context(encoder_hidden_states) for block in self.transformer_blocks
        ]

    def __call__(self, x: FeatureMap, context: Sequence[ContextKV]) -> FeatureMap:
        """Map `x [b, h, w, c]` to `[b, h, w, c]`; `context` is from `project_context`."""
        batch, _, _, channels = shape = x.values.shape
        hidden = self.proj_in(self.norm(x).reshape(batch, -1, channels))  # [b, h*w, c]
        for block, key_value in zip(self.transformer_blocks, context, strict=True):
            hidden = block(hidden, key_value)
        return FeatureMap(x.values + self.proj_out(hidden).reshape(shape))
