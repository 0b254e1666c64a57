"""Define the transformer of FLUX.2 klein: diffusers' Flux2Transformer2DModel.

Input: noisy latents, timesteps, and the hidden states of a text. Output: the predicted velocity
from the image to noise. All tokens of the text are read, those that pad it too, as in diffusers.

Axes: b rows, h w size in tokens, c numbers of a token, n tokens, t of them those of the text, d
width of the transformer.
"""

from typing import ClassVar, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.families.flux2_klein.blocks import DoubleBlock, SingleBlock
from imagefleet.worker.engine.families.flux2_klein.transformer_config import TransformerConfig
from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.modulation import FinalNorm, Modulation
from imagefleet.worker.engine.networks.reference_image import Reference
from imagefleet.worker.engine.networks.rotary import Rotation, axis_angles
from imagefleet.worker.engine.networks.sinusoids import sinusoids

_REFERENCE_TIME: Final = 10
"""As in diffusers, it is the first number of the positions of a reference image's tokens. Those of
the image have 0."""


class TimeEmbedding(nnx.Module):
    """It is diffusers' Flux2TimestepGuidanceEmbeddings without guidance."""

    def __init__(self, config: TransformerConfig) -> None:
        self.waves = config.timestep_guidance_channels
        self.linear_1 = linear(self.waves, config.width, use_bias=False)
        self.linear_2 = linear(config.width, config.width, use_bias=False)

    def __call__(self, timesteps: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Embed float32 timesteps `[b]` as `[b, d]` of a dtype."""
        waves = sinusoids(timesteps, self.waves, flip_sin_to_cos=True, freq_shift=0)
        return self.linear_2(jax.nn.silu(self.linear_1(waves.astype(dtype))))


class Transformer(nnx.Module):
    """It is diffusers' Flux2Transformer2DModel without an embedding of the guidance."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=(
            (r"^time_embedder\b", "time_guidance_embed.timestep_embedder"),
            (r"^(transformer_blocks\.\d+\.attn\.to_out)\b", r"\1.0"),
        )
    )

    def __init__(self, config: TransformerConfig) -> None:
        width = config.width
        self.config = config
        self.time_embedder = TimeEmbedding(config)
        self.double_stream_modulation_img = Modulation(width, 2, use_bias=False)
        self.double_stream_modulation_txt = Modulation(width, 2, use_bias=False)
        self.single_stream_modulation = Modulation(width, 1, use_bias=False)
        self.x_embedder = linear(config.in_channels, width, use_bias=False)
        self.context_embedder = linear(config.joint_attention_dim, width, use_bias=False)
        self.transformer_blocks = nnx.List(DoubleBlock(config) for _ in range(config.num_layers))
        self.single_transformer_blocks = nnx.List(
            SingleBlock(config) for _ in range(config.num_single_layers)
        )
        self.norm_out = FinalNorm(width, config.eps, use_bias=False)
        self.proj_out = linear(width, config.in_channels, use_bias=False)

    def embed_text(self, states: jax.Array) -> jax.Array:
        """Embed hidden states `[b, t, e]` as tokens `[b, t, d]`, once for all steps."""
        return self.context_embedder(states)

    def __call__(
        self,
        latents: jax.Array,
        timesteps: jax.Array,
        text: jax.Array,
        reference: Reference | None = None,
    ) -> jax.Array:
        """Predict the velocity from the image to noise, `[b, h, w, c]`.

        Args:
            latents: `[b, h, w, c]`.
            timesteps: float32 `[b]`: 0 is the image, 1000 noise.
            text: From `embed_text`, `[b, t, d]`.
            reference: None: no row has one.
        """
        _, height, width, _ = latents.shape
        tokens, end = text.shape[1], text.shape[1] + height * width
        image = self.x_embedder(_tokens_of(latents))
        time = self.time_embedder(timesteps, latents.dtype)
        rotation = rotation_of(self.config, tokens, height, width)
        mask: jax.Array | None = None
        if reference is not None:
            image = jnp.concatenate([image, self.x_embedder(_tokens_of(reference.latents))], axis=1)
            rotation = rotation_of(self.config, tokens, height, width, has_reference=True)
            mask = reference.mask(end, tokens + image.shape[1])
        of_image = self.double_stream_modulation_img(time)
        of_text = self.double_stream_modulation_txt(time)
        for double in self.transformer_blocks:
            text, image = double(text, image, of_text, of_image, rotation, mask)
        joined = jnp.concatenate([text, image], axis=1)
        (modulated,) = self.single_stream_modulation(time)
        for single in self.single_transformer_blocks:
            joined = single(joined, modulated, rotation, mask)
        output = self.proj_out(self.norm_out(joined[:, tokens:end], time))
        return output.reshape(latents.shape)


def _tokens_of(latents: jax.Array) -> jax.Array:
    """Reshape `[b, h, w, c]` to `[b, h w, c]`."""
    return latents.reshape(len(latents), -1, latents.shape[-1])


def rotation_of(
    config: TransformerConfig,
    tokens: int,
    height: int,
    width: int,
    *,
    has_reference: bool = False,
) -> Rotation:
    """Return the rotations of the tokens of a text, of an image after it, and of a reference image.

    The text's tokens lie at the positions (0, 0, 0, 0), (0, 0, 0, 1), …, those of the image at
    (0, row, column, 0), and those of the reference image, which has its size, at
    (10, row, column, 0).
    """
    text, image = np.zeros((tokens, 4), np.int64), np.zeros((height * width, 4), np.int64)
    text[:, 3] = np.arange(tokens)
    image[:, 1:3] = np.indices((height, width)).reshape(2, -1).T
    parts = [text, image]
    if has_reference:
        parts.append(image + np.array([_REFERENCE_TIME, 0, 0, 0]))
    places = np.concatenate(parts)
    return Rotation.of_angles(axis_angles(places, config.axes_dims_rope, config.rope_theta))
