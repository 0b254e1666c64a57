"""Text to image as three pure functions: begin a batch, one denoising step, decode.

Goes in: weights, and arrays whose leading axis is the slot. Comes out: arrays of slots. Slots never
mix, so a picture depends on its own slot's inputs only. Knows no devices and no loop.

Axes: b slots, h w latent size, c latent channels, n tokens, d text width.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from worker.engine.models.unet import UNet
from worker.engine.prompts import PromptEncoder, States
from worker.engine.schedulers import table
from worker.engine.schedulers.table import LAGS


class Weights(NamedTuple):
    """The states of the networks."""

    text: States
    unet: nnx.State[Any, Any]
    vae: nnx.State[Any, Any]


class Request(NamedTuple):
    """What a batch is to become. Numpy on the host, then split between devices by slot."""

    tokens: Any
    """int32 `[b, 2, e, n]`: the negative prompt, the prompt; for each text encoder its own."""
    key: Any
    """uint32 `[b, 2]`: the seed's high and low half, which is threefry's key."""
    image_index: Any
    """uint32 `[b]`."""
    initial_scale: Any
    """float32 `[b]`."""
    guidance: Any
    """float32 `[b]`."""
    rows: Any
    """float32 `[b, calls, COLUMNS]`, padded."""
    calls: Any
    """int32 `[b]`: rows that count. None in a slot that is only padding."""


class Conditions(NamedTuple):
    """What stays the same over all steps."""

    text: Any
    """The text as each layer of the UNet attends to it, a tree of `[b, 2, n, c]`."""
    guidance: jax.Array
    rows: jax.Array
    calls: jax.Array


class State(NamedTuple):
    """What a step changes."""

    latents: jax.Array
    """float32 `[b, h, w, c]`."""
    history: jax.Array
    """float32 `[b, LAGS - 1, h, w, c]`."""
    position: jax.Array
    """int32 `[b]`: the row each slot is at."""


def initial_noise(key: jax.Array, image_index: jax.Array, size: tuple[int, int, int]) -> jax.Array:
    """float32 `[b, h, w, c]`, each slot from `fold_in(key(seed), image_index)`."""

    def of_one(key: jax.Array, index: jax.Array) -> jax.Array:
        image_key = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), index)
        return jax.random.normal(image_key, size, jnp.float32)

    return jax.vmap(of_one)(key, image_index)


def guided(outputs: jax.Array, guidance: jax.Array) -> jax.Array:
    """Classifier-free guidance (Ho & Salimans 2022) in float32.

    `outputs [b, 2, h, w, c]` without and with the prompt, `guidance [b]`. Up to 1 means none.
    """
    without, conditional = outputs[:, 0], outputs[:, 1]
    scale = guidance[:, None, None, None]
    return jnp.where(scale > 1, without + scale * (conditional - without), conditional)


@dataclass(frozen=True)
class Sampler:
    """The networks' structure; their weights are arguments."""

    prompts: PromptEncoder
    unet: nnx.GraphDef[nnx.Module]
    vae: nnx.GraphDef[nnx.Module]
    latent_channels: int
    scaling_factor: float
    pixels_per_latent: int
    dtype: DTypeLike

    def begin(
        self, weights: Weights, request: Request, latent_size: tuple[int, int]
    ) -> tuple[Conditions, State]:
        """Encode the prompts, draw the noise."""
        slots = request.tokens.shape[0]
        prompt = self.prompts(weights.text, request.tokens)
        hidden, pooled = jax.tree.map(lambda x: x.astype(self.dtype), prompt)
        height, width = (side * self.pixels_per_latent for side in latent_size)
        # The picture whole, from its corner: the defaults of diffusers.
        time_ids = (height, width, 0, 0, height, width)
        text = self._denoiser(weights).read(hidden, pooled, time_ids)
        size = (*latent_size, self.latent_channels)
        noise = initial_noise(request.key, request.image_index, size)
        conditions = Conditions(text, request.guidance, request.rows, request.calls)
        return conditions, State(
            latents=noise * request.initial_scale[:, None, None, None],
            history=jnp.zeros((slots, LAGS - 1, *size), jnp.float32),
            position=jnp.zeros(slots, jnp.int32),
        )

    def step(
        self, weights: Weights, conditions: Conditions, state: State
    ) -> tuple[State, jax.Array]:
        """One row of every slot that has rows left; also the rows each has done, int32 `[b]`."""
        row = table.row_at(conditions.rows, state.position)
        output = self._predict(weights, conditions, state.latents, table.timestep(row))
        moved = table.step(state.latents, output, state.history, row)
        going = state.position < conditions.calls
        latents, history = (
            jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(moved, (state.latents, state.history), strict=True)
        )
        position = state.position + going
        return State(latents, history, position), jnp.minimum(position, conditions.calls)

    def _predict(
        self, weights: Weights, conditions: Conditions, latents: jax.Array, timestep: jax.Array
    ) -> jax.Array:
        """The guided output of the UNet, float32 `[b, h, w, c]`."""
        slots = latents.shape[0]
        denoise = self._denoiser(weights)
        twice = jnp.repeat(latents.astype(self.dtype), 2, axis=0)  # [b * 2, h, w, c]
        text = jax.tree.map(lambda x: x.reshape(slots * 2, *x.shape[2:]), conditions.text)
        outputs = denoise(twice, jnp.repeat(timestep, 2), text)
        outputs = outputs.astype(jnp.float32).reshape(slots, 2, *latents.shape[1:])
        return guided(outputs, conditions.guidance)

    def _denoiser(self, weights: Weights) -> UNet:
        return cast(UNet, nnx.merge(self.unet, weights.unet))

    def decode(self, weights: Weights, state: State) -> tuple[jax.Array, jax.Array]:
        """uint8 pictures `[b, H, W, 3]`, and whether each is made of finite numbers `[b]`."""
        decoder = nnx.merge(self.vae, weights.vae)
        pixels = decoder((state.latents / self.scaling_factor).astype(self.dtype))
        pixels = pixels.astype(jnp.float32)
        pictures = jnp.round(jnp.clip(pixels / 2 + 0.5, 0, 1) * 255).astype(jnp.uint8)
        return pictures, jnp.isfinite(pixels).all(axis=(1, 2, 3))
