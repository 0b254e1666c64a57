"""Encode prompts and run the transformer of FLUX.2 klein, in all slots of a batch.

Input: weights and the arrays of a batch. Output: the texts as tokens, and the transformer's
prediction after guidance. See `Denoiser` in `sampling/denoiser_protocol.py`.

Axes: b slots, 2 the negative prompt and the prompt, r rows of the transformer's batch for a slot,
h w latent size, c latent channels, t tokens of a text, d width of the transformer.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageLimits
from imagefleet.worker.engine.families.flux2_klein.configs import IMAGE_LIMITS
from imagefleet.worker.engine.families.flux2_klein.text_states import TextStates
from imagefleet.worker.engine.families.flux2_klein.transformer import Transformer
from imagefleet.worker.engine.networks.lora_layers import merge_network
from imagefleet.worker.engine.networks.reference_image import Reference
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Conditions, Weights
from imagefleet.worker.engine.sampling.guidance import apply_guidance
from imagefleet.worker.engine.sampling.image_input import ImageInput


@dataclass(frozen=True)
class Flux2KleinDenoiser:
    """The structure of the text encoder and of the transformer; their weights are arguments."""

    text_encoding: TextStates
    transformer: nnx.GraphDef[nnx.Module]
    dtype: DTypeLike
    guided_rows: int
    """A distilled model has 1: it reads no negative prompts."""
    image_input: ImageInput = ImageInput.REFERENCE
    image_limits: ImageLimits | None = IMAGE_LIMITS
    limits_guidance: bool = False
    true_guidance: bool = False
    has_large_products: bool = True

    @property
    def has_guidance(self) -> bool:
        """Return whether the model is not a distilled one."""
        return self.guided_rows > 1

    def encode_prompts(
        self, weights: Weights, inputs: BatchInputs, height: int, width: int
    ) -> jax.Array:
        """Return the texts as tokens, `[b, 2, t, d]`; `[b, 1, t, d]` of a distilled model."""
        slots, rows, length, width = inputs.text_states.shape
        transformer = self._merge(weights.denoiser, inputs.lora_scales)
        text = transformer.embed_text(inputs.text_states.reshape(-1, length, width))
        return text.reshape(slots, rows, length, -1)

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

        With guidance the transformer runs on the negative prompt and the prompt, otherwise on the
        prompt alone.
        """
        network, slots = self._merge(weights, conditions.lora_scales), len(latents)
        rows = self.guided_rows if guidance else 1
        inputs, text, times = jax.tree.map(
            lambda each: each[:, -rows:].reshape(slots * rows, *each.shape[2:]),
            (
                jnp.repeat(latents[:, None], rows, axis=1).astype(self.dtype),
                conditions.text,
                jnp.repeat(timestep[:, None], rows, axis=1),
            ),
        )
        references = self._references(conditions, rows) if reference else None
        outputs = network(inputs, times, text, references).astype(jnp.float32)
        outputs = outputs.reshape(slots, rows, *latents.shape[1:])
        return apply_guidance(outputs, conditions.guidance, conditions.guidance_rescale, None)

    def _references(self, conditions: Conditions, rows: int) -> Reference:
        """Return the reference images of the transformer's rows, `rows` for each slot."""
        latents, exists = conditions.init_latents.image_channels, conditions.has_image
        assert exists is not None, "the model takes reference images"
        return Reference(
            jnp.repeat(latents.astype(self.dtype), rows, axis=0), jnp.repeat(exists, rows)
        )

    def _merge(self, weights: Params, lora_scales: jax.Array | None) -> Transformer:
        return cast(Transformer, merge_network(self.transformer, weights, lora_scales))
