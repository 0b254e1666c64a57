"""Define the transformer layer of CLIP's text and image encoders (Radford et al. 2021).

Input and output are embeddings of tokens or patches. This module depends on neither text nor
pixels.
"""

from collections.abc import Callable
from typing import Final, Protocol

import jax
from flax import nnx

from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.networks.blocks import LayerNorm, gelu, linear


def quick_gelu(x: jax.Array) -> jax.Array:
    """Return CLIP's approximation of GELU, x sigmoid(1.702 x) (Hendrycks & Gimpel 2016)."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: Final[dict[str, Callable[[jax.Array], jax.Array]]] = {
    "quick_gelu": quick_gelu,
    "gelu": gelu,
}


class LayerConfig(Protocol):
    """It has the fields of an encoder's config that its layers read."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def layer_norm_eps(self) -> float: ...


class SelfAttention(nnx.Module):
    """It is transformers' CLIPAttention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        self.heads, self.causal = heads, causal
        self.q_proj = linear(width, width)
        self.k_proj = linear(width, width)
        self.v_proj = linear(width, width)
        self.out_proj = linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.out_proj(attention(q, k, v, heads=self.heads, causal=self.causal))


class Mlp(nnx.Module):
    """It is transformers' CLIPMLP."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.activation = activation
        self.fc1 = linear(width, inner)
        self.fc2 = linear(inner, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x)))


class EncoderLayer(nnx.Module):
    """It is transformers' CLIPEncoderLayer, which normalises before attention and MLP."""

    def __init__(self, config: LayerConfig, *, causal: bool) -> None:
        width, epsilon = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = LayerNorm(width, epsilon)
        self.self_attn = SelfAttention(width, config.num_attention_heads, causal)
        self.layer_norm2 = LayerNorm(width, epsilon)
        self.mlp = Mlp(width, config.intermediate_size, config.hidden_act)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[b, n, c]` to `[b, n, c]`."""
        x += self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))
