"""Encode prompts and run the transformer of Z-Image, in all slots of a batch.

Input: weights and the arrays of a batch. Output: the refined texts, and the transformer's
prediction after guidance. See `Denoiser` in `sampling/denoiser_protocol.py`.

Axes: b slots, 2 the negative prompt and the prompt, r rows of the transformer's batch for a slot,
h w latent size, c latent channels, t tokens of a text.
"""

from dataclasses import dataclass
from typing import Final, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.z_image.configs import GUIDED_ROWS
from imagefleet.worker.engine.families.z_image.guidance import add_guidance
from imagefleet.worker.engine.families.z_image.text_states import TextStates
from imagefleet.worker.engine.families.z_image.transformer import RefinedText, Transformer
from imagefleet.worker.engine.networks.lora_layers import merge_network
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Conditions, Weights
from imagefleet.worker.engine.sampling.image_input import ImageInput

_NOISE_TIMESTEP: Final = 1000.0
"""diffusers' pipeline takes this timestep as pure noise, whatever the scheduler's config says."""


@dataclass(frozen=True)
class ZImageDenoiser:
    """The structure of the text encoder and of the transformer; their weights are arguments."""

    text_encoding: TextStates
    transformer: nnx.GraphDef[nnx.Module]
    dtype: DTypeLike
    image_input: ImageInput = ImageInput.NONE
    image_limits: None = None
    has_guidance: bool = True
    limits_guidance: bool = True
    true_guidance: bool = False
    has_large_products: bool = True

    def encode_prompts(
        self, weights: Weights, inputs: BatchInputs, height: int, width: int
    ) -> RefinedText:
        """Return the refined texts, `[b, 2, …]`."""
        ids = inputs.tokens[0]  # [b, 2, 1, t]
        slots, pair, _, length = ids.shape
        lengths = (ids.reshape(-1, length) >= 0).sum(axis=1, dtype=jnp.int32)
        states = inputs.text_states.reshape(slots * pair, length, -1)
        transformer = self._merge(weights.denoiser, inputs.lora_scales)
        text = transformer.refine_text(states, lengths)
        return RefinedText(*(each.reshape(slots, pair, *each.shape[1:]) for each in text))

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
        rows = GUIDED_ROWS if guidance else 1
        inputs, text, times = jax.tree.map(
            lambda each: each[:, -rows:].reshape(slots * rows, *each.shape[2:]),
            (
                jnp.repeat(latents[:, None], rows, axis=1).astype(self.dtype),
                conditions.text,
                jnp.repeat((_NOISE_TIMESTEP - timestep)[:, None] / _NOISE_TIMESTEP, rows, axis=1),
            ),
        )
        outputs = network(inputs, times, text).astype(jnp.float32)
        outputs = outputs.reshape(slots, rows, *latents.shape[1:])
        scale, limits = conditions.guidance, conditions.guidance_limits
        assert limits is not None, "the model takes them"
        scale = jnp.where(timestep < limits.last_timestep, 0, scale)
        # The transformer predicts x0 - eps, and a schedule of flow models takes eps - x0.
        return -add_guidance(outputs, scale, limits.normalization)

    def _merge(self, weights: Params, lora_scales: jax.Array | None) -> Transformer:
        return cast(Transformer, merge_network(self.transformer, weights, lora_scales))
