"""Define the pure functions of image generation: encode, begin, step, preview, decode.

Input: weights, and arrays whose leading axis is the slot. Output: arrays of slots. Slots never mix,
so an image depends on the inputs of its own slot only. This module depends on neither devices nor
loops.

Axes: b slots, h w latent size, H W pixels, c latent channels.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.safety import SafetyChecker
from imagefleet.worker.engine.sampling.arrays import (
    BatchInputs,
    Conditions,
    ControlImages,
    Decoded,
    InitImages,
    InitLatents,
    SamplerState,
    Weights,
)
from imagefleet.worker.engine.sampling.autoencoder_protocol import Autoencoder
from imagefleet.worker.engine.sampling.control_protocol import ControlNets
from imagefleet.worker.engine.sampling.denoiser_protocol import Denoiser
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.sampling.noise import NoiseUse, fold_in, image_key, normal
from imagefleet.worker.engine.schedulers import coefficients
from imagefleet.worker.engine.schedulers.coefficients import LAGS


@dataclass(frozen=True)
class DiffusionPrograms:
    """It has the programs of one model: the structure of its networks, but no weights."""

    denoiser: Denoiser
    """It has the text encoders and the network of the model's family."""
    vae: nnx.GraphDef[nnx.Module]
    safety: nnx.GraphDef[SafetyChecker] | None
    """None means that no image is checked."""
    latent_channels: int
    latent_scale: LatentScale
    pixels_per_latent: int
    dtype: DTypeLike
    control: ControlNets | None = None
    """None means that there are no ControlNets."""

    def encode(self, weights: Weights, init_images: InitImages) -> InitLatents:
        """Sample VAE latents of the init images from the encoder's distribution, as diffusers."""
        pixels = init_images.pixels.astype(jnp.float32) / 127.5 - 1
        mean, latents = self._sample_latents(weights, pixels, init_images, NoiseUse.ENCODING)
        # PyTorch's nearest interpolation takes the first pixel of each square.
        every = slice(None, None, self.pixels_per_latent)
        mask = init_images.inpaint_mask[:, every, every]
        image, image_input = None, self.denoiser.image_input
        if image_input.is_whole:
            image = mean  # as in diffusers, without noise, and of instruct-pix2pix not scaled
            if image_input is ImageInput.REFERENCE:
                image = self.latent_scale.scale(mean)
        elif image_input.is_masked:
            kept = jnp.where(init_images.inpaint_mask, 0, pixels)
            use = NoiseUse.MASKED_ENCODING
            _, kept_latents = self._sample_latents(weights, kept, init_images, use)
            parts = [mask, kept_latents]
            if image_input is ImageInput.FILLED:
                parts = [kept_latents, self._pixels_of_latents(init_images.inpaint_mask)]
            image = jnp.concatenate([each.astype(jnp.float32) for each in parts], axis=-1)
        return InitLatents(latents, mask, image)

    def _pixels_of_latents(self, mask: jax.Array) -> jax.Array:
        """Reshape a mask `[b, H, W, 1]` to `[b, h, w, p p]`: the p p pixels of each latent."""
        side = self.pixels_per_latent
        slots, height, width, _ = mask.shape
        squares = mask.reshape(slots, height // side, side, width // side, side)
        return squares.transpose(0, 1, 3, 2, 4).reshape(*squares.shape[:2], width // side, -1)

    def _sample_latents(
        self, weights: Weights, pixels: jax.Array, init_images: InitImages, use: NoiseUse
    ) -> tuple[jax.Array, jax.Array]:
        """Return the mean of the encoder's distribution, and scaled latents drawn from it."""
        mean, log_variance = self._merge_vae(weights).encode(pixels.astype(self.dtype))
        mean, deviation = mean.astype(jnp.float32), jnp.exp(log_variance.astype(jnp.float32) / 2)
        noise = normal(image_key(init_images.key, use, init_images.image_index), mean.shape[1:])
        return mean, self.latent_scale.scale(mean + deviation * noise)

    def embed_control(self, weights: Weights, images: ControlImages) -> jax.Array:
        """Embed the control images, `[b, h, w, width]`. Call it only if there are ControlNets."""
        assert self.control is not None
        return self.control.embed(weights.denoiser, images)

    def begin(
        self, weights: Weights, inputs: BatchInputs, init_latents: InitLatents
    ) -> tuple[Conditions, SamplerState]:
        """Encode the prompts, draw the initial noise and mix it with the init latents."""
        slots, *size = init_latents.latents.shape
        height, width = (side * self.pixels_per_latent for side in size[:2])
        text = self.denoiser.encode_prompts(weights, inputs, height, width)
        noise = normal(image_key(inputs.key, NoiseUse.START, inputs.image_index), tuple(size))
        mix = inputs.initial_mix[:, :, None, None, None]
        conditions = Conditions(
            text=text,
            guidance=inputs.guidance,
            guidance_rescale=inputs.guidance_rescale,
            rows=inputs.rows,
            calls=inputs.calls,
            init_latents=init_latents,
            noise=noise,
            step_key=image_key(inputs.key, NoiseUse.STEPS, inputs.image_index),
            lora_scales=inputs.lora_scales,
            image_guidance=inputs.image_guidance,
            guidance_limits=inputs.guidance_limits,
            true_guidance=inputs.true_guidance,
            has_image=inputs.has_image,
            control=inputs.control,
        )
        return conditions, SamplerState(
            latents=mix[:, 0] * init_latents.latents + mix[:, 1] * noise,
            history=jnp.zeros((slots, LAGS - 1, *size), jnp.float32),
            position=jnp.zeros(slots, jnp.int32),
            predicted_x0=init_latents.latents,
        )

    def takes_reference(self, height: int, width: int) -> bool:
        """Return whether slots of this size in pixels may have a reference image."""
        limits = self.denoiser.image_limits
        return self.denoiser.image_input is ImageInput.REFERENCE and (
            limits is None or limits.allow(height, width)
        )

    def step(
        self,
        weights: Params,
        conditions: Conditions,
        state: SamplerState,
        *,
        guidance: bool = True,
        reference: bool = False,
    ) -> tuple[SamplerState, jax.Array]:
        """Apply one row in every slot that has rows left.

        Args:
            weights: Of the denoiser.
            conditions: From `begin`.
            state: From `begin` or from the step before.
            guidance: False if no slot uses guidance: the denoiser then runs on the prompts alone.
                `begin` encodes the negative prompts in either case. That costs some percent of one
                step and saves one program.
            reference: Whether a slot has a reference image. Then the denoiser runs on more tokens,
                in all slots.

        Returns:
            The next state, and the number of rows done in each slot, int32 `[b]`.
        """
        row = coefficients.row_at(conditions.rows, state.position)
        timestep = coefficients.timestep(row)
        output = self.denoiser.predict(
            weights,
            _with_current_scales(conditions, state.position),
            state.latents,
            timestep,
            guidance=guidance,
            reference=reference,
        )
        key = fold_in(conditions.step_key, state.position)
        fresh = normal(key, state.latents.shape[1:])
        denoised, history = coefficients.step(state.latents, output, state.history, fresh, row)
        x0 = coefficients.predicted_x0(row, state.latents, output)
        if self.denoiser.image_input is ImageInput.NONE:
            init_latents, mask = conditions.init_latents[:2]
            kept = coefficients.noised_to_next_level(row, init_latents, conditions.noise)
            denoised, x0 = jnp.where(mask, denoised, kept), jnp.where(mask, x0, init_latents)
        next_state = SamplerState(denoised, history, state.position + 1, predicted_x0=x0)
        active = state.position < conditions.calls
        state = jax.tree.map(
            lambda new, old: jnp.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            next_state,
            state,
        )
        return state, state.position

    def _merge_vae(self, weights: Weights) -> Autoencoder:
        return cast(Autoencoder, nnx.merge(self.vae, weights.vae))

    def preview(self, state: SamplerState, rgb_factors: jax.Array) -> jax.Array:
        """Map the predicted x0 to colours, uint8 `[b, h, w, 3]`, with `rgb_factors [c + 1, 3]`."""
        pixels = state.predicted_x0 @ rgb_factors[:-1] + rgb_factors[-1]
        return jnp.round(jnp.clip(pixels, 0, 1) * 255).astype(jnp.uint8)

    def decode(self, weights: Weights, state: SamplerState) -> Decoded:
        """Decode the latents. As in diffusers, images that the safety checker flags are black."""
        latents = self.latent_scale.unscale(state.latents).astype(self.dtype)
        pixels = self._merge_vae(weights).decode(latents)
        pixels = pixels.astype(jnp.float32)
        images = jnp.round(jnp.clip(pixels / 2 + 0.5, 0, 1) * 255).astype(jnp.uint8)
        finite = jnp.isfinite(pixels).all(axis=(1, 2, 3))
        if self.safety is None or weights.safety is None:
            return Decoded(images, finite, jnp.zeros_like(finite))
        flagged = nnx.merge(self.safety, weights.safety)(images)
        return Decoded(jnp.where(flagged[:, None, None, None], 0, images), finite, flagged)


def _with_current_scales(conditions: Conditions, position: jax.Array) -> Conditions:
    """Return conditions in which the ControlNets that do not run in this call have the scale 0.

    Args:
        conditions: From `begin`.
        position: Of each slot, `[b]`.
    """
    control = conditions.control
    if control is None:
        return conditions
    first, end = control.calls[:, 0], control.calls[:, 1]
    runs = (first <= position) & (position < end)
    scales = jnp.where(runs[:, None], control.scales, 0)
    return conditions._replace(control=control._replace(scales=scales))
