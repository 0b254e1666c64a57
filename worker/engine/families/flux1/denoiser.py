"""Encode prompts and run the transformer of FLUX.1, in all slots of a batch.

Input: weights and the arrays of a batch. Output: the embedded texts, and the transformer's
prediction. See `Denoiser` in `sampling/denoiser_protocol.py`. The guidance scale is an input of the
transformer, or has no effect. `true_cfg_scale` is the scale of the guidance by a negative prompt.

Axes: b slots, k texts of a slot with the prompt last, h w latent size, c latent channels, t tokens
of a text, d width of the transformer.
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
from imagefleet.worker.engine.sampling.guidance import apply_guidance
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
    limits_guidance: bool = False
    true_guidance: bool = False
    has_large_products: bool = True

    @property
    def has_guidance(self) -> bool:
        return self.true_guidance

    def encode_prompts(
        self, weights: Weights, inputs: BatchInputs, height: int, width: int
    ) -> EmbeddedText:
        """Return the embedded texts, `[b, k, …]`."""
        clip = cast(ClipText, merge_network(self.clip, weights.text[1], inputs.lora_scales))
        slots, texts, length, _ = inputs.text_states.shape
        pooled = clip.end_state(inputs.tokens[1][:, -texts:, 0].reshape(slots * texts, -1))
        states = inputs.text_states.reshape(slots * texts, length, -1)
        transformer = self._merge(weights.denoiser, inputs.lora_scales)
        text = transformer.embed_text(states, pooled.astype(self.dtype))
        return EmbeddedText(*(each.reshape(slots, texts, *each.shape[1:]) for each in text))

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
        """Return the transformer's output after guidance, float32 `[b, h, w, c]`.

        With guidance the transformer runs on the negative prompts and then on the prompts. It takes
        the time of twice the slots so, but no more memory.
        """
        network = self._merge(weights, conditions.lora_scales)
        if self.image_input is ImageInput.FILLED:
            image = conditions.init_latents.image_channels
            latents = jnp.concatenate([latents, image], axis=-1)
        given: Reference | None = None
        if reference:
            image, exists = conditions.init_latents.image_channels, conditions.has_image
            assert exists is not None, "the model takes reference images"
            given = Reference(image.astype(self.dtype), exists)

        def run(text: EmbeddedText) -> jax.Array:
            """Return the output for a text of each slot, `[b, …]`."""
            output = network(latents.astype(self.dtype), timestep, conditions.guidance, text, given)
            return output.astype(jnp.float32)

        if not guidance or conditions.true_guidance is None:
            return run(EmbeddedText(*(each[:, -1] for each in conditions.text)))
        outputs = jax.lax.map(run, jax.tree.map(lambda each: each.swapaxes(0, 1), conditions.text))
        rescale = conditions.guidance_rescale
        return apply_guidance(outputs.swapaxes(0, 1), conditions.true_guidance, rescale, None)

    def _merge(self, weights: Params, lora_scales: jax.Array | None) -> Transformer:
        return cast(Transformer, merge_network(self.transformer, weights, lora_scales))
