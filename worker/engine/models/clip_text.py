"""CLIP's text encoder (Radford et al. 2021), as Stable Diffusion 1.x uses it.

Goes in: token ids. Comes out: the last hidden state of every token, after the final norm. Knows no
text: the tokenizer is `worker.engine.tokenizer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import jax
import jax.numpy as jnp
from flax import nnx

from worker.engine.attention import attention
from worker.engine.models.blocks import embedding, layer_norm, linear
from worker.engine.models.config import ConfigReader, Json


def quick_gelu(x: jax.Array) -> jax.Array:
    """CLIP's own approximation of GELU."""
    return x * jax.nn.sigmoid(1.702 * x)


def gelu(x: jax.Array) -> jax.Array:
    """GELU by the error function, as torch's default."""
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: Final[dict[str, Callable[[jax.Array], jax.Array]]] = {
    "quick_gelu": quick_gelu,
    "gelu": gelu,
}


@dataclass(frozen=True, kw_only=True)
class ClipTextConfig:
    """`text_encoder/config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that are missing or ask for another network.
        """
        fields = ConfigReader("text encoder", config)
        fields.choice("model_type", "clip_text_model", ("clip_text_model",))
        fields.choice("architectures", ["CLIPTextModel"], (["CLIPTextModel"],))
        fields.ignored(
            *("attention_dropout", "dropout", "initializer_factor", "initializer_range", "dtype"),
            *("torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "projection_dim"),
            "transformers_version",
        )
        read = cls(
            vocab_size=fields.get("vocab_size", 49408),
            hidden_size=fields.get("hidden_size", 512),
            intermediate_size=fields.get("intermediate_size", 2048),
            num_hidden_layers=fields.get("num_hidden_layers", 12),
            num_attention_heads=fields.get("num_attention_heads", 8),
            max_position_embeddings=fields.get("max_position_embeddings", 77),
            hidden_act=fields.choice("hidden_act", "quick_gelu", tuple(ACTIVATIONS)),
            layer_norm_eps=fields.get("layer_norm_eps", 1e-5),
        )
        fields.finish()
        return read


class SelfAttention(nnx.Module):
    """CLIPAttention: causal."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.q_proj = linear(width, width)
        self.k_proj = linear(width, width)
        self.v_proj = linear(width, width)
        self.out_proj = linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.out_proj(attention(q, k, v, heads=self.heads, causal=True))


class Mlp(nnx.Module):
    """CLIPMLP."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.activation = activation
        self.fc1 = linear(width, inner)
        self.fc2 = linear(inner, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x)))


class EncoderLayer(nnx.Module):
    """CLIPEncoderLayer: norms come first."""

    def __init__(self, config: ClipTextConfig) -> None:
        width, epsilon = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = layer_norm(width, epsilon)
        self.self_attn = SelfAttention(width, config.num_attention_heads)
        self.layer_norm2 = layer_norm(width, epsilon)
        self.mlp = Mlp(width, config.intermediate_size, config.hidden_act)

    def __call__(self, x: jax.Array) -> jax.Array:
        x += self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class ClipText(nnx.Module):
    """CLIPTextModel without its pooled output."""

    def __init__(self, config: ClipTextConfig) -> None:
        width = config.hidden_size
        self.token_embedding = embedding(config.vocab_size, width)
        self.position_embedding = embedding(config.max_position_embeddings, width)
        self.layers = nnx.List(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        self.final_layer_norm = layer_norm(width, config.layer_norm_eps)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """`tokens [b, n]` int32 to `[b, n, hidden_size]`."""
        x = self.token_embedding(tokens)
        x += self.position_embedding(jnp.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        normed: jax.Array = self.final_layer_norm(x)
        return normed
