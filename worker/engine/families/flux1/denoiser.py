"""Encode prompts and run the transformer of FLUX.1, in all slots of a batch.

Input: weights and the arrays of a batch. Output: the embedded texts, and the transformer's
prediction. See `Denoiser` in `sampling/denoiser_protocol.py`. The guidance scale is an input of the
transformer, or has no effect: there are no negative prompts.

Axes: b slots, h w latent size, c latent channels, t tokens of a text, d width of the transformer.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.flux1.transformer import Transformer
from imagefleet.worker.engine.families.t5_states import T5States
from imagefleet.worker.engine.networks.clip_text import ClipText
from imagefleet.worker.engine.networks.lora_layers import merge_network
from imagefleet.worker.engine.networks.reference_image import Reference
from imagefleet.worker.engine.networks.time_and_text import EmbeddedText
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Conditions, Weights
from imagefleet.worker.engine.sampling.image_input import ImageInput


@dataclass(frozen=True)
class Flux1Denoiser:
    """The structure of the text encoders and of the transformer; their weights are arguments."""

    text_encoding: T5States
    """It runs T5, the first of the text encoders."""
    clip: nnx.GraphDef[nnx.Module]
    """It is the second one."""
    transformer: nnx.GraphDef[nnx.Module]
    dtype: DTypeLike
    image_input: ImageInput = ImageInput.NONE
    image_limits: None = None
    has_guidance: bool = False
    limits_guidance: bool = False

    def encode_prompts(
        self, weights: Weights, inputs: BatchInputs, height: int, width: int
    ) -> EmbeddedText:
        """Return the embedded prompts, `[b, 1, …]`."""
        clip = cast(ClipText, merge_network(self.clip, weights.text[1], inputs.lora_scales))
        pooled = clip.end_state(inputs.tokens[1][:, -1, 0])
        transformer = self._merge(weights.denoiser, inputs.lora_scales)
        text = transformer.embed_text(inputs.text_states[:, 0], pooled.astype(self.dtype))
        return EmbeddedText(*(each[:, None] for each in text))

    def predict(
        self,
        weights: Params,
        conditions: Conditions,
        latents: jax.Array,
        timestep: jax.Array,
        *,
        guidance: bool,
        reference: bool = False,
    ) -> jax.Array:
        """Return the transformer's output, float32 `[b, h, w, c]`."""
        network = self._merge(weights, conditions.lora_scales)
        text = EmbeddedText(*(each[:, 0] for each in conditions.text))
        if self.image_input is ImageInput.FILLED:
            image = conditions.init_latents.image_channels
            latents = jnp.concatenate([latents, image], axis=-1)
        given: Reference | None = None
        if reference:
            image, exists = conditions.init_latents.image_channels, conditions.has_image
            assert exists is not None, "the model takes reference images"
            given = Reference(image.astype(self.dtype), exists)
        output = network(latents.astype(self.dtype), timestep, conditions.guidance, text, given)
        return output.astype(jnp.float32)

    def _merge(self, weights: Params, lora_scales: jax.Array | None) -> Transformer:
        return cast(Transformer, merge_network(self.transformer, weights, lora_scales))
