"""CLIP's image encoder (Radford et al. 2021).

Goes in: square pictures, normalised. Comes out: one state for each. Knows nothing of what it is
compared with.
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.models.blocks import conv, embedding, layer_norm
from imagefleet.worker.engine.models.clip import ACTIVATIONS, EncoderLayer
from imagefleet.worker.engine.models.config import ConfigReader, Json


@dataclass(frozen=True, kw_only=True)
class ClipVisionConfig:
    """`vision_config` of a CLIP config."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    image_size: int
    patch_size: int
    hidden_act: str
    layer_norm_eps: float

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that are missing or ask for another network.
        """
        fields = ConfigReader("image encoder", config)
        fields.ignored(*config)  # old files list every option of text generation
        fields.fixed(num_channels=3)
        read = cls(
            hidden_size=(width := fields.count("hidden_size", 768)),
            intermediate_size=fields.count("intermediate_size", 3072),
            num_hidden_layers=fields.count("num_hidden_layers", 12),
            num_attention_heads=fields.divisor("num_attention_heads", 12, of=(width,)),
            image_size=fields.count("image_size", 224),
            patch_size=fields.divisor("patch_size", 32, of=(config.get("image_size", 224),)),
            hidden_act=fields.choice("hidden_act", "quick_gelu", tuple(ACTIVATIONS)),
            layer_norm_eps=fields.number("layer_norm_eps", 1e-5, above=0),
        )
        fields.finish()
        return read


class Embeddings(nnx.Module):
    """CLIPVisionEmbeddings: a token for each patch, one for the whole before them."""

    def __init__(self, config: ClipVisionConfig) -> None:
        width, patch = config.hidden_size, config.patch_size
        self.class_embedding = nnx.Param(jnp.zeros(width))
        self.patch_embedding = conv(
            3, width, kernel=patch, stride=patch, border=(0, 0), use_bias=False
        )
        self.position_embedding = embedding((config.image_size // patch) ** 2 + 1, width)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        patches = self.patch_embedding(pixels)  # [b, rows, columns, c]
        patches = patches.reshape(patches.shape[0], -1, patches.shape[-1])
        whole = jnp.broadcast_to(self.class_embedding[...], (len(patches), 1, patches.shape[-1]))
        tokens = jnp.concatenate([whole, patches], axis=1)
        return tokens + self.position_embedding(jnp.arange(tokens.shape[1]))


class ClipVision(nnx.Module):
    """CLIPVisionModel's pooled output."""

    def __init__(self, config: ClipVisionConfig) -> None:
        width, epsilon = config.hidden_size, config.layer_norm_eps
        self.embeddings = Embeddings(config)
        self.pre_layrnorm = layer_norm(width, epsilon)  # so the files spell it
        self.layers = nnx.List(
            EncoderLayer(config, causal=False) for _ in range(config.num_hidden_layers)
        )
        self.post_layernorm = layer_norm(width, epsilon)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """`pixels [b, image_size, image_size, 3]` to `[b, hidden_size]`."""
        x = self.pre_layrnorm(self.embeddings(pixels))
        for layer in self.layers:
            x = layer(x)
        pooled: jax.Array = self.post_layernorm(x[:, 0])
        return pooled
