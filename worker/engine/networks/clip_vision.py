"""Define CLIP's image encoder (Radford et al. 2021).

Input: normalised square images. Output: one state per image. This module does not compare the
states with anything.
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.networks.blocks import LayerNorm, conv, embedding
from imagefleet.worker.engine.networks.clip_layer import ACTIVATIONS, EncoderLayer
from imagefleet.worker.engine.networks.unset_weights import zeros


@dataclass(frozen=True, kw_only=True)
class ClipVisionConfig:
    """It is the `vision_config` of a CLIP config."""

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
        """Read the config.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("safety_checker/config.json, vision_config", config)
        fields.ignore(*config)  # old files list every option of text generation
        fields.require(num_channels=3)
        checked = cls(
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
        return checked


class Embeddings(nnx.Module):
    """It is transformers' CLIPVisionEmbeddings: a class token, then a token for each patch."""

    def __init__(self, config: ClipVisionConfig) -> None:
        width, patch = config.hidden_size, config.patch_size
        self.class_embedding = nnx.Param(zeros(width))
        self.patch_embedding = conv(
            3, width, kernel=patch, stride=patch, padding=(0, 0), use_bias=False
        )
        self.position_embedding = embedding((config.image_size // patch) ** 2 + 1, width)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Map `pixels [b, image_size, image_size, 3]` to tokens `[b, 1 + patches, c]`."""
        patches = self.patch_embedding(pixels)  # [b, rows, columns, c]
        patches = patches.reshape(patches.shape[0], -1, patches.shape[-1])
        first = jnp.broadcast_to(self.class_embedding[...], (len(patches), 1, patches.shape[-1]))
        tokens = jnp.concatenate([first, patches], axis=1)
        return tokens + self.position_embedding(jnp.arange(tokens.shape[1]))


class ClipVision(nnx.Module):
    """It is transformers' CLIPVisionModel, of which only the pooled output is computed."""

    def __init__(self, config: ClipVisionConfig) -> None:
        width, epsilon = config.hidden_size, config.layer_norm_eps
        self.embeddings = Embeddings(config)
        self.pre_layrnorm = LayerNorm(width, epsilon)  # the spelling of the checkpoints
        self.layers = nnx.List(
            EncoderLayer(config, causal=False) for _ in range(config.num_hidden_layers)
        )
        self.post_layernorm = LayerNorm(width, epsilon)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Encode `pixels [b, image_size, image_size, 3]` to `[b, hidden_size]`."""
        x = self.pre_layrnorm(self.embeddings(pixels))
        for layer in self.layers:
            x = layer(x)
        pooled: jax.Array = self.post_layernorm(x[:, 0])
        return pooled
