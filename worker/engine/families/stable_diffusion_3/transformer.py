"""Define the transformer of Stable Diffusion 3: diffusers' SD3Transformer2DModel.

Input: noisy latents, timesteps and an encoded text. Output: the predicted velocity from the image
to noise. All tokens of the text are read, those that pad it too, as in diffusers.

Axes: b rows, h w latent size, c latent channels, n tokens, t of them those of the text, d width of
the transformer.
"""

from typing import ClassVar

import jax
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.families.stable_diffusion_3.blocks import JointBlock
from imagefleet.worker.engine.families.stable_diffusion_3.transformer_config import (
    EPSILON,
    TransformerConfig,
)
from imagefleet.worker.engine.networks.blocks import conv, linear
from imagefleet.worker.engine.networks.gelu_mlp import GeluMlp
from imagefleet.worker.engine.networks.latent_packing import PATCH, join_patches
from imagefleet.worker.engine.networks.modulation import FinalNorm
from imagefleet.worker.engine.networks.time_and_text import EmbeddedText, TimeTextEmbedding
from imagefleet.worker.engine.networks.unset_weights import zeros


class PatchEmbedding(nnx.Module):
    """It is diffusers' PatchEmbed with a table of positions, whose middle is read."""

    def __init__(self, config: TransformerConfig) -> None:
        self.side = config.pos_embed_max_size
        self.proj = conv(
            config.in_channels, config.width, kernel=PATCH, stride=PATCH, padding=(0, 0)
        )
        self.pos_embed = nnx.Param(zeros(1, self.side**2, config.width))

    def __call__(self, latents: jax.Array) -> jax.Array:
        """Map `[b, h, w, c]` to the tokens `[b, n, d]`."""
        patches = self.proj(latents)
        rows, columns, width = patches.shape[1:]
        top, left = (self.side - rows) // 2, (self.side - columns) // 2
        table = self.pos_embed[...].reshape(1, self.side, self.side, width)
        positions = table[:, top : top + rows, left : left + columns]
        return (patches + positions).reshape(len(patches), -1, width)


class Transformer(nnx.Module):
    """It is diffusers' SD3Transformer2DModel."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=((r"\b(attn2?\.to_out)\b", r"\1.0"), *GeluMlp.weight_rules)
    )

    def __init__(self, config: TransformerConfig) -> None:
        width = config.width
        self.config = config
        self.pos_embed = PatchEmbedding(config)
        self.time_text_embed = TimeTextEmbedding(width, config.pooled_projection_dim)
        self.context_embedder = linear(config.joint_attention_dim, width)
        self.transformer_blocks = nnx.List(
            JointBlock(config, number) for number in range(config.num_layers)
        )
        self.norm_out = FinalNorm(width, EPSILON, use_bias=True)
        self.proj_out = linear(width, PATCH**2 * config.in_channels)

    def embed_text(self, states: jax.Array, pooled: jax.Array) -> EmbeddedText:
        """Embed texts, once for all steps.

        Args:
            states: Those of all text encoders, `[b, t, e]`.
            pooled: The pooled states of CLIP, `[b, p]`.
        """
        return EmbeddedText(
            self.context_embedder(states), self.time_text_embed.text_embedder(pooled)
        )

    def __call__(self, latents: jax.Array, timesteps: jax.Array, text: EmbeddedText) -> jax.Array:
        """Predict the velocity from the image to noise, `[b, h, w, c]`.

        Args:
            latents: `[b, h, w, c]`.
            timesteps: float32 `[b]`: 0 is the image, 1000 noise.
            text: From `embed_text`.
        """
        rows, columns = (side // PATCH for side in latents.shape[1:3])
        image, tokens = self.pos_embed(latents), text.tokens
        time = self.time_text_embed(timesteps, text.pooled)
        for block in self.transformer_blocks:
            tokens, image = block(tokens, image, time)
        return join_patches(self.proj_out(self.norm_out(image, time)), rows, columns)
