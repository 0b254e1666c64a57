"""Define the pure functions of image generation: encode, begin, step, preview, decode.

Goes in: weights, and arrays whose leading axis is the slot. Comes out: arrays of slots. Slots never
mix, so an image depends on the inputs of its own slot only. Knows no devices and no loop.

Axes: b slots, h w latent size, H W pixels, c latent channels, n tokens, 2 the negative prompt and
the prompt.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.image_noise import NoiseUse, fold_in, normal
from imagefleet.worker.engine.models.latent_scale import LatentScale
from imagefleet.worker.engine.models.lora_layers import merge_network
from imagefleet.worker.engine.models.safety import SafetyChecker
from imagefleet.worker.engine.models.unet import UNet
from imagefleet.worker.engine.models.vae import Vae
from imagefleet.worker.engine.prompt_encoder import PromptEncoder
from imagefleet.worker.engine.schedulers import coefficients
from imagefleet.worker.engine.schedulers.coefficients import LAGS


class Weights(NamedTuple):
    """The parameters of the networks."""

    text: tuple[Params, ...]
    unet: Params
    vae: Params
    safety: Params | None


class BatchInputs(NamedTuple):
    """The inputs of a batch. They are numpy arrays on the host, then split by slot over devices."""

    tokens: Any
    """int32 `[b, 2, e, n]`: one sequence for each of e text encoders."""
    has_negative: Any
    """bool `[b]`: whether a negative prompt is given, be it empty."""
    key: Any
    """uint32 `[b, 2]`: the seed's high and low half, which form a threefry key."""
    image_index: Any
    """uint32 `[b]`."""
    initial_mix: Any
    """float32 `[b, 2]`: the factors of the init latents and of the noise in the first latents."""
    guidance: Any
    """float32 `[b]`."""
    rows: Any
    """float32 `[b, calls, COLUMNS]`, padded."""
    calls: Any
    """int32 `[b]`: the number of rows that are not padding. 0 in a padding slot."""
    lora_scales: Any = None
    """float32 `[b, LoRA]`: the scale of each LoRA that jobs may use. None if there are none."""


class InitImages(NamedTuple):
    """The init images of a batch. Zeros, mask True, in a slot without one."""

    pixels: Any
    """uint8 `[b, H, W, 3]`."""
    inpaint_mask: Any
    """bool `[b, h, w, 1]`: True where the image is generated. It is kept elsewhere."""
    key: Any
    """As in `BatchInputs`."""
    image_index: Any
    """As in `BatchInputs`."""


class InitLatents(NamedTuple):
    """VAE latents of the init images. Zeros, mask True, in a slot without one."""

    latents: Any
    """float32 `[b, h, w, c]`."""
    inpaint_mask: Any
    """bool `[b, h, w, 1]`."""


class Conditions(NamedTuple):
    """The inputs of a step that stay the same over all steps."""

    text: Any
    """The text as each layer of the UNet attends to it, a tree of `[b, 2, n, c]`."""
    guidance: jax.Array
    rows: jax.Array
    calls: jax.Array
    init_latents: InitLatents
    noise: jax.Array
    """float32 `[b, h, w, c]`: the initial noise. Inpainting also adds it to the kept parts."""
    step_key: jax.Array
    """uint32 `[b, 2]`: the key of the noise that some schedulers add at each step."""
    lora_scales: jax.Array | None = None
    """As in `BatchInputs`."""


class SamplerState(NamedTuple):
    """The arrays that a step changes."""

    latents: jax.Array
    """float32 `[b, h, w, c]`."""
    history: jax.Array
    """float32 `[b, LAGS - 1, h, w, c]`."""
    position: jax.Array
    """int32 `[b]`: the next row of each slot."""
    predicted_x0: jax.Array
    """float32 `[b, h, w, c]`: the x0 that the last step predicted, for previews."""


class Decoded(NamedTuple):
    """The results of a batch."""

    images: jax.Array
    """uint8 `[b, H, W, 3]`."""
    finite: jax.Array
    """bool `[b]`: whether the decoder's output is free of NaN and infinity."""
    flagged: jax.Array
    """bool `[b]`: whether the safety checker made the image black."""


def apply_guidance(outputs: jax.Array, guidance: jax.Array) -> jax.Array:
    """Apply classifier-free guidance (Ho & Salimans 2022, equation 6) in float32.

    `outputs [b, 2, h, w, c]` are without and with the prompt. A slot whose `guidance [b]` is 1 or
    less gets the output with the prompt.
    """
    without, conditional = outputs[:, 0], outputs[:, 1]
    scale = guidance[:, None, None, None]
    return jnp.where(scale > 1, without + scale * (conditional - without), conditional)


@dataclass(frozen=True)
class DiffusionPrograms:
    """The programs of one model. This record holds the networks' structure, but no weights."""

    prompt_encoder: PromptEncoder
    unet: nnx.GraphDef[nnx.Module]
    vae: nnx.GraphDef[nnx.Module]
    safety: nnx.GraphDef[SafetyChecker] | None
    """None: no image is checked."""
    latent_channels: int
    latent_scale: LatentScale
    pixels_per_latent: int
    dtype: DTypeLike

    def encode(self, weights: Weights, init_images: InitImages) -> InitLatents:
        """Sample VAE latents of the init images from the encoder's distribution, as diffusers."""
        pixels = init_images.pixels.astype(jnp.float32) / 127.5 - 1
        mean, log_variance = self._merge_vae(weights).encode(pixels.astype(self.dtype))
        mean, deviation = mean.astype(jnp.float32), jnp.exp(log_variance.astype(jnp.float32) / 2)
        key = fold_in(init_images.key, NoiseUse.ENCODING + init_images.image_index)
        latents = mean + deviation * normal(key, mean.shape[1:])
        return InitLatents(self.latent_scale.scale(latents), init_images.inpaint_mask)

    def begin(
        self, weights: Weights, inputs: BatchInputs, init_latents: InitLatents
    ) -> tuple[Conditions, SamplerState]:
        """Encode the prompts, draw the initial noise and mix it with the init latents."""
        slots, *size = init_latents.latents.shape
        tokens, has_negative, scales = inputs.tokens, inputs.has_negative, inputs.lora_scales
        prompt = self.prompt_encoder(weights.text, tokens, has_negative, scales)
        hidden, pooled = jax.tree.map(lambda x: x.astype(self.dtype), prompt)
        height, width = (side * self.pixels_per_latent for side in size[:2])
        # SDXL's original size, crop corner and target size (Podell et al. 2023, section 2.2):
        # diffusers' defaults, an image that is not cropped.
        time_ids = (height, width, 0, 0, height, width)
        text = self._merge_unet(weights.unet, scales).project_context(hidden, pooled, time_ids)
        noise = normal(fold_in(inputs.key, NoiseUse.START + inputs.image_index), tuple(size))
        mix = inputs.initial_mix[:, :, None, None, None]
        conditions = Conditions(
            text=text,
            guidance=inputs.guidance,
            rows=inputs.rows,
            calls=inputs.calls,
            init_latents=init_latents,
            noise=noise,
            step_key=fold_in(inputs.key, NoiseUse.STEPS + inputs.image_index),
            lora_scales=scales,
        )
        return conditions, SamplerState(
            latents=mix[:, 0] * init_latents.latents + mix[:, 1] * noise,
            history=jnp.zeros((slots, LAGS - 1, *size), jnp.float32),
            position=jnp.zeros(slots, jnp.int32),
            predicted_x0=init_latents.latents,
        )

    def step(
        self, unet: Params, conditions: Conditions, state: SamplerState, *, guidance: bool = True
    ) -> tuple[SamplerState, jax.Array]:
        """Apply one row in every slot that has rows left.

        Args:
            unet: Its weights.
            conditions: From `begin`.
            state: From `begin` or from the step before.
            guidance: False if no slot uses guidance: the UNet then runs on the prompts alone.
                `begin` encodes the negative prompts in either case. That costs some percent of one
                step and saves one program.

        Returns:
            The next state, and the number of rows done in each slot, int32 `[b]`.
        """
        row = coefficients.row_at(conditions.rows, state.position)
        timestep = coefficients.timestep(row)
        output = self._predict(unet, conditions, state.latents, timestep, 2 if guidance else 1)
        fresh = normal(fold_in(conditions.step_key, state.position), state.latents.shape[1:])
        denoised, history = coefficients.step(state.latents, output, state.history, fresh, row)
        init_latents, mask = conditions.init_latents
        kept = coefficients.noised_to_next_level(row, init_latents, conditions.noise)
        x0 = coefficients.predicted_x0(row, state.latents, output)
        next_state = SamplerState(
            latents=jnp.where(mask, denoised, kept),
            history=history,
            position=state.position + 1,
            predicted_x0=jnp.where(mask, x0, init_latents),
        )
        active = state.position < conditions.calls
        state = jax.tree.map(
            lambda new, old: jnp.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            next_state,
            state,
        )
        return state, state.position

    def _predict(
        self,
        unet: Params,
        conditions: Conditions,
        latents: jax.Array,
        timestep: jax.Array,
        prompts: int,
    ) -> jax.Array:
        """Return the UNet's output, float32 `[b, h, w, c]`.

        `prompts` is 2 for the negative prompt and the prompt with guidance, 1 for the prompt alone.
        """
        network, slots = self._merge_unet(unet, conditions.lora_scales), len(latents)
        if network.config.time_cond_proj_dim is not None:
            prompts = 1  # the UNet itself applies the guidance
        inputs = jnp.repeat(latents.astype(self.dtype), prompts, axis=0)  # [b * p, h, w, c]
        text = jax.tree.map(
            lambda x: x[:, -prompts:].reshape(slots * prompts, *x.shape[2:]), conditions.text
        )
        guidance = jnp.repeat(conditions.guidance, prompts)
        outputs = network(inputs, jnp.repeat(timestep, prompts), text, guidance)
        outputs = outputs.astype(jnp.float32).reshape(slots, prompts, *latents.shape[1:])
        return outputs[:, 0] if prompts == 1 else apply_guidance(outputs, conditions.guidance)

    def _merge_unet(self, unet: Params, lora_scales: jax.Array | None) -> UNet:
        return cast(UNet, merge_network(self.unet, unet, lora_scales))

    def _merge_vae(self, weights: Weights) -> Vae:
        return cast(Vae, nnx.merge(self.vae, weights.vae))

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
