"""Encode prompts and run the UNet of Stable Diffusion, in all slots of a batch.

Input: weights and the arrays of a batch. Output: the context of the prompts, and the UNet's
prediction after guidance. See `Denoiser` in `sampling/denoiser_protocol.py`.

Axes: b slots, 2 the negative prompt and the prompt, r rows of the UNet's batch for a slot, h w
latent size, c latent channels.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.stable_diffusion.control_nets import (
    UNET,
    ControlledContext,
    StableDiffusionControlNets,
)
from imagefleet.worker.engine.families.stable_diffusion.prompt_chunks import used_tokens
from imagefleet.worker.engine.families.stable_diffusion.prompt_encoder import PromptEncoder
from imagefleet.worker.engine.families.stable_diffusion.time_ids import time_ids
from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
from imagefleet.worker.engine.families.stable_diffusion.unet_encoder import PromptContext
from imagefleet.worker.engine.networks.lora_layers import merge_network
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Conditions, Weights
from imagefleet.worker.engine.sampling.guidance import apply_guidance
from imagefleet.worker.engine.sampling.image_input import ImageInput


@dataclass(frozen=True)
class StableDiffusionDenoiser:
    """The structure of the text encoders and of the UNet; their weights are arguments."""

    prompt_encoder: PromptEncoder
    unet: nnx.GraphDef[nnx.Module]
    dtype: DTypeLike
    image_input: ImageInput = ImageInput.NONE
    image_limits: None = None
    has_aesthetic_scores: bool = False
    """Whether one of the numbers about an image is an aesthetic score (SDXL's refiner)."""
    has_guidance: bool = True
    limits_guidance: bool = False
    true_guidance: bool = False
    has_large_products: bool = False
    text_encoding: None = None
    control: StableDiffusionControlNets | None = None
    """With ControlNets, the weights of the denoiser have the keys `UNET` and `NETS`."""

    def encode_prompts(
        self, weights: Weights, inputs: BatchInputs, height: int, width: int
    ) -> PromptContext | ControlledContext:
        """Return the keys and values of the prompts, `[b, 2, …]`."""
        scales = inputs.lora_scales
        prompt = self.prompt_encoder(
            weights.text,
            inputs.tokens,
            inputs.has_negative,
            inputs.clip_skip,
            scales,
            inputs.token_weights,
            inputs.used_chunks,
        )
        hidden, pooled = jax.tree.map(lambda x: x.astype(self.dtype), prompt)
        ids = time_ids(height, width, has_aesthetic_scores=self.has_aesthetic_scores)
        text = self._merge(weights.denoiser, scales).project_context(hidden, pooled, ids)
        *_, chunks, length = inputs.tokens[0].shape
        mask = None
        if inputs.used_chunks is not None and chunks > 1:
            mask = used_tokens(inputs.used_chunks, chunks, length)
        text = text._replace(mask=mask)
        if self.control is None or inputs.control is None:
            return text
        nets = self.control.encode_prompts(
            weights.denoiser, inputs.control.scales, hidden, pooled, ids
        )
        return ControlledContext(text, tuple(each._replace(mask=mask) for each in nets))

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
        """Return the UNet's output after guidance, float32 `[b, h, w, c]`.

        With guidance the UNet runs on the negative prompt and the prompt, otherwise on the prompt
        alone. A UNet that edits an image then also runs on the negative prompt without the image.
        """
        network, slots = self._merge(weights, conditions.lora_scales), len(latents)
        # A distilled UNet applies the guidance itself.
        prompts = 2 if guidance and network.config.time_cond_proj_dim is None else 1
        text = jax.tree.map(lambda x: x[:, -prompts:], conditions.text)
        image = conditions.init_latents.image_channels
        images = [] if image is None else [image] * prompts
        if self.image_input is ImageInput.EDITED and prompts == 2:
            text = jax.tree.map(lambda x: jnp.concatenate([x[:, :1], x], axis=1), text)
            images = [jnp.zeros_like(image), *images]
        rows = max(prompts, len(images))
        inputs = jnp.repeat(latents[:, None], rows, axis=1)  # [b, r, h, w, c]
        if images:
            inputs = jnp.concatenate([inputs, jnp.stack(images, axis=1)], axis=-1)
        inputs, text = jax.tree.map(
            lambda x: x.reshape(slots * rows, *x.shape[2:]), (inputs.astype(self.dtype), text)
        )
        scale, timesteps = jnp.repeat(conditions.guidance, rows), jnp.repeat(timestep, rows)
        added = None
        if self.control is not None and conditions.control is not None:
            scales, control_map = conditions.control.scales, conditions.init_latents.control_map
            added = self.control.run(weights, scales, inputs, timesteps, text.nets, control_map)
            text = text.unet
        outputs = network(inputs, timesteps, text, scale, added)
        outputs = outputs.astype(jnp.float32).reshape(slots, rows, *latents.shape[1:])
        return apply_guidance(
            outputs, conditions.guidance, conditions.guidance_rescale, conditions.image_guidance
        )

    def _merge(self, weights: Params, lora_scales: jax.Array | None) -> UNet:
        weights = weights if self.control is None else weights[UNET]
        return cast(UNet, merge_network(self.unet, weights, lora_scales))
