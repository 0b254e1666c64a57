"""Define the transformer of FLUX.1: diffusers' FluxTransformer2DModel.

Input: noisy latents, timesteps, guidance scales, and an encoded text. Output: the predicted
velocity from the image to noise. All tokens of the text are read, those that pad it too, as in
diffusers.

Axes: b rows, h w latent size, c latent channels, n tokens, t of them those of the text, d width of
the transformer.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.families.flux1.blocks import DoubleBlock, SingleBlock
from imagefleet.worker.engine.families.flux1.transformer_config import (
    EPSILON,
    ROPE_THETA,
    TransformerConfig,
)
from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.gelu_mlp import GeluMlp
from imagefleet.worker.engine.networks.latent_packing import PATCH, pack, unpack
from imagefleet.worker.engine.networks.modulation import FinalNorm
from imagefleet.worker.engine.networks.reference_image import Reference
from imagefleet.worker.engine.networks.rotary import Rotation, axis_angles
from imagefleet.worker.engine.networks.time_and_text import EmbeddedText, TimeTextEmbedding


class Transformer(nnx.Module):
    """It is diffusers' FluxTransformer2DModel, with the packing of its pipelines."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=(
            (r"^(transformer_blocks\.\d+\.attn\.to_out)\b", r"\1.0"),
            *GeluMlp.weight_rules,
        )
    )

    def __init__(self, config: TransformerConfig) -> None:
        width = config.width
        self.config = config
        self.time_text_embed = TimeTextEmbedding(
            width, config.pooled_projection_dim, has_guidance=config.guidance_embeds
        )
        self.context_embedder = linear(config.joint_attention_dim, width)
        self.x_embedder = linear(config.in_channels, width)
        self.transformer_blocks = nnx.List(DoubleBlock(config) for _ in range(config.num_layers))
        self.single_transformer_blocks = nnx.List(
            SingleBlock(config) for _ in range(config.num_single_layers)
        )
        self.norm_out = FinalNorm(width, EPSILON, use_bias=True)
        self.proj_out = linear(width, config.out_channels)

    def embed_text(self, states: jax.Array, pooled: jax.Array) -> EmbeddedText:
        """Embed texts, once for all steps.

        Args:
            states: Those of T5, `[b, t, e]`.
            pooled: The pooled state of CLIP, `[b, p]`.
        """
        return EmbeddedText(
            self.context_embedder(states), self.time_text_embed.text_embedder(pooled)
        )

    def __call__(
        self,
        latents: jax.Array,
        timesteps: jax.Array,
        guidance: jax.Array,
        text: EmbeddedText,
        reference: Reference | None = None,
    ) -> jax.Array:
        """Predict the velocity from the image to noise, `[b, h, w, c]`.

        Args:
            latents: `[b, h, w, c]`, perhaps with further channels.
            timesteps: float32 `[b]`: 0 is the image, 1000 noise.
            guidance: float32 `[b]`: the guidance scales. Only some models read them.
            text: From `embed_text`.
            reference: None: no row has one.
        """
        batch, height, width, _ = latents.shape
        rows, columns, tokens = height // PATCH, width // PATCH, text.tokens
        count, end = tokens.shape[1], tokens.shape[1] + rows * columns
        image = self.x_embedder(_tokens_of(latents))
        time = self.time_text_embed(timesteps, text.pooled, guidance)
        rotation = rotation_of(self.config, count, rows, columns, reference is not None)
        mask: jax.Array | None = None
        if reference is not None:
            image = jnp.concatenate([image, self.x_embedder(_tokens_of(reference.latents))], axis=1)
            mask = reference.mask(end, count + image.shape[1])
        for double in self.transformer_blocks:
            tokens, image = double(tokens, image, time, rotation, mask)
        joined = jnp.concatenate([tokens, image], axis=1)
        for single in self.single_transformer_blocks:
            joined = single(joined, time, rotation, mask)
        output = self.proj_out(self.norm_out(joined[:, count:end], time))
        return unpack(output.reshape(batch, rows, columns, -1))


def _tokens_of(latents: jax.Array) -> jax.Array:
    """Pack latents `[b, h, w, c]` to tokens `[b, h w / 4, 4 c]`."""
    packed = pack(latents)
    return packed.reshape(len(packed), -1, packed.shape[-1])


def rotation_of(
    config: TransformerConfig, tokens: int, rows: int, columns: int, has_reference: bool = False
) -> Rotation:
    """Return the rotations of the tokens of a text, of an image after it, and of a reference image.

    The tokens of a text all lie at the position (0, 0, 0), those of the image at (0, row, column),
    and those of the reference image, which has its size, at (1, row, column).
    """
    image = np.zeros((rows * columns, 3), np.int64)
    image[:, 1:] = np.indices((rows, columns)).reshape(2, -1).T
    parts = [np.zeros((tokens, 3), np.int64), image]
    if has_reference:
        parts.append(image + np.array([1, 0, 0]))
    places = np.concatenate(parts)
    return Rotation.of_angles(axis_angles(places, config.axes_dims_rope, ROPE_THETA))
