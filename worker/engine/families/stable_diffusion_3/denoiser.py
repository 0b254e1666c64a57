"""Encode prompts and run the transformer of Stable Diffusion 3, in all slots of a batch.

Input: weights and the arrays of a batch. Output: the embedded texts, and the transformer's
prediction after guidance. See `Denoiser` in `sampling/denoiser_protocol.py`.

Axes: b slots, 2 the negative prompt and the prompt, r rows of the transformer's batch for a slot,
h w latent size, c latent channels, n tokens of a text.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.stable_diffusion_3.configs import GUIDED_ROWS, TEXT_LENGTH
from imagefleet.worker.engine.families.stable_diffusion_3.parts import CLIPS
from imagefleet.worker.engine.families.stable_diffusion_3.transformer import Transformer
from imagefleet.worker.engine.families.t5_states import T5States
from imagefleet.worker.engine.networks.clip_text import ClipText, skip_layers
from imagefleet.worker.engine.networks.lora_layers import merge_network
from imagefleet.worker.engine.networks.time_and_text import EmbeddedText
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Conditions, Weights
from imagefleet.worker.engine.sampling.guidance import apply_guidance
from imagefleet.worker.engine.sampling.image_input import ImageInput


@dataclass(frozen=True)
class StableDiffusion3Denoiser:
    """It has the structure of the text encoders and of the transformer; weights are arguments."""

    text_encoding: T5States | None
    """It runs T5, the first of the text encoders. None: the model has none."""
    clips: tuple[nnx.GraphDef[nnx.Module], ...]
    """They are the last text encoders."""
    transformer: nnx.GraphDef[nnx.Module]
    dtype: DTypeLike
    image_input: ImageInput = ImageInput.NONE
    image_limits: None = None
    has_guidance: bool = True
    limits_guidance: bool = False
    true_guidance: bool = False
    has_large_products: bool = True

    def encode_prompts(
        self, weights: Weights, inputs: BatchInputs, height: int, width: int
    ) -> EmbeddedText:
        """Return the embedded texts, `[b, 2, …]`.

        The states of both CLIP lie side by side, padded with zeros to the width of T5's, and those
        of T5 come after them. Without T5 there are zeros in their place.
        """
        network, slots = self._merge(weights.denoiser, inputs.lora_scales), len(inputs.clip_skip)
        of_clip, pooled = self._encode_by_clip(weights, inputs)
        missing = network.config.joint_attention_dim - of_clip.shape[-1]
        of_clip = jnp.pad(of_clip, ((0, 0), (0, 0), (0, missing)))
        of_t5 = jnp.zeros((len(of_clip), TEXT_LENGTH, of_clip.shape[-1]), self.dtype)
        if self.text_encoding is not None:
            of_t5 = inputs.text_states.reshape(of_t5.shape)
        states = jnp.concatenate([of_clip.astype(self.dtype), of_t5], axis=1)
        text = network.embed_text(states, pooled.astype(self.dtype))
        return EmbeddedText(*(each.reshape(slots, 2, *each.shape[1:]) for each in text))

    def _encode_by_clip(self, weights: Weights, inputs: BatchInputs) -> tuple[jax.Array, jax.Array]:
        """Return the penultimate states of both CLIP, or earlier ones of the prompt if it skips
        layers, and the pooled states: `[2b, n, …]` and `[2b, …]`."""
        skip = jnp.stack([jnp.zeros_like(inputs.clip_skip), inputs.clip_skip], axis=1).reshape(-1)
        states: list[jax.Array] = []
        pooled: list[jax.Array] = []
        for graph, parameters, tokens in zip(
            self.clips, weights.text[-len(CLIPS) :], inputs.tokens[-len(CLIPS) :], strict=True
        ):
            encoder = cast(ClipText, merge_network(graph, parameters, inputs.lora_scales))
            of_text = encoder(tokens.reshape(-1, tokens.shape[-1]))
            states.append(skip_layers(of_text.hidden_states[:-1], skip))
            assert of_text.pooled is not None  # of CLIPTextModelWithProjection
            pooled.append(of_text.pooled)
        return jnp.concatenate(states, axis=-1), jnp.concatenate(pooled, axis=-1)

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
                jnp.repeat(timestep[:, None], rows, axis=1),
            ),
        )
        outputs = network(inputs, times, text).astype(jnp.float32)
        outputs = outputs.reshape(slots, rows, *latents.shape[1:])
        return apply_guidance(outputs, conditions.guidance, conditions.guidance_rescale, None)

    def _merge(self, weights: Params, lora_scales: jax.Array | None) -> Transformer:
        return cast(Transformer, merge_network(self.transformer, weights, lora_scales))
