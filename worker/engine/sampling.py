"""Text, and pictures to start from, to pictures, in pure functions: encode, begin a batch, one
denoising step, preview, decode.

Goes in: weights, and arrays whose leading axis is the slot. Comes out: arrays of slots. Slots never
mix, so a picture depends on its own slot's inputs only. Knows no devices and no loop.

Axes: b slots, h w latent size, H W pixels, c latent channels, n tokens, 2 the negative prompt and
the prompt.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Arrays
from imagefleet.worker.engine.models.safety import SafetyChecker
from imagefleet.worker.engine.models.unet import UNet
from imagefleet.worker.engine.models.vae import Vae
from imagefleet.worker.engine.prompts import PromptEncoder
from imagefleet.worker.engine.schedulers import coefficients
from imagefleet.worker.engine.schedulers.coefficients import LAGS


class Weights(NamedTuple):
    """The parameters of the networks."""

    text: tuple[Arrays, ...]
    unet: Arrays
    vae: Arrays
    safety: Arrays | None


class BatchInputs(NamedTuple):
    """What a batch is to become. Numpy on the host, then split between devices by slot."""

    tokens: Any
    """int32 `[b, 2, e, n]`; for each of e text encoders its own."""
    key: Any
    """uint32 `[b, 2]`: the seed's high and low half, which is threefry's key."""
    image_index: Any
    """uint32 `[b]`."""
    start: Any
    """float32 `[b, 2]`: the given picture's part in the first latents, and the noise's."""
    guidance: Any
    """float32 `[b]`."""
    rows: Any
    """float32 `[b, calls, COLUMNS]`, padded."""
    calls: Any
    """int32 `[b]`: rows that count. None in a slot that is only padding."""


class InitImages(NamedTuple):
    """Pictures to start from, of the slots that have one."""

    pixels: Any
    """uint8 `[b, H, W, 3]`."""
    repaint: Any
    """bool `[b, h, w, 1]`: where to paint. Elsewhere the picture is kept."""
    key: Any
    """As in `BatchInputs`."""
    image_index: Any


class Given(NamedTuple):
    """The same, encoded. Zeros and True in a slot without a picture."""

    latents: Any
    """float32 `[b, h, w, c]`."""
    repaint: Any
    """bool `[b, h, w, 1]`."""


class Conditions(NamedTuple):
    """What stays the same over all steps."""

    text: Any
    """The text as each layer of the UNet attends to it, a tree of `[b, 2, n, c]`."""
    guidance: jax.Array
    rows: jax.Array
    calls: jax.Array
    given: Given
    noise: jax.Array
    """float32 `[b, h, w, c]`: what the slot began with, and what its kept parts are mixed with."""
    step_key: jax.Array
    """uint32 `[b, 2]`: for the noise that some samplers add at each step."""


class SamplerState(NamedTuple):
    """What a step changes."""

    latents: jax.Array
    """float32 `[b, h, w, c]`."""
    history: jax.Array
    """float32 `[b, LAGS - 1, h, w, c]`."""
    position: jax.Array
    """int32 `[b]`: the row each slot is at."""
    clean: jax.Array
    """float32 `[b, h, w, c]`: latents as the model imagined them last; for previews."""


class Decoded(NamedTuple):
    """What a batch came to."""

    pictures: jax.Array
    """uint8 `[b, H, W, 3]`."""
    finite: jax.Array
    """bool `[b]`: whether the picture was made of numbers."""
    flagged: jax.Array
    """bool `[b]`: whether the safety checker blacked it out."""


class Draw(IntEnum):
    """What noise is for. Each use has keys of its own, `fold_in(key(seed), use + image_index)`: an
    image index is far below the distance between uses."""

    START = 0
    STEPS = 1 << 16
    ENCODING = 2 << 16


def fold(key: jax.Array, number: jax.Array) -> jax.Array:
    """Threefry keys `uint32 [b, 2]`, each folded with its `number [b]`."""

    def of_one(key: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.fold_in(_wrapped(key), number))

    return jax.vmap(of_one)(key, number)


def normal(key: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """float32 `[b, *size]` from keys `uint32 [b, 2]`."""
    return jax.vmap(lambda key: jax.random.normal(_wrapped(key), size, jnp.float32))(key)


def _wrapped(key: jax.Array) -> jax.Array:
    wrapped: jax.Array = jax.random.wrap_key_data(key, impl="threefry2x32")
    return wrapped


def guided(outputs: jax.Array, guidance: jax.Array) -> jax.Array:
    """Classifier-free guidance (Ho & Salimans 2022) in float32.

    `outputs [b, 2, h, w, c]` without and with the prompt, `guidance [b]`. Up to 1 means none.
    """
    without, conditional = outputs[:, 0], outputs[:, 1]
    scale = guidance[:, None, None, None]
    return jnp.where(scale > 1, without + scale * (conditional - without), conditional)


@dataclass(frozen=True)
class DiffusionPrograms:
    """The networks' structure; their weights are arguments."""

    prompts: PromptEncoder
    unet: nnx.GraphDef[nnx.Module]
    vae: nnx.GraphDef[nnx.Module]
    safety: nnx.GraphDef[SafetyChecker] | None
    """None: no picture is judged."""
    latent_channels: int
    scaling_factor: float
    pixels_per_latent: int
    dtype: DTypeLike

    def encode(self, weights: Weights, originals: InitImages) -> Given:
        """Draw latents of the pictures, as diffusers does; one picture can be many latents."""
        pixels = originals.pixels.astype(jnp.float32) / 127.5 - 1
        mean, log_variance = self._autoencoder(weights).encode(pixels.astype(self.dtype))
        mean, deviation = mean.astype(jnp.float32), jnp.exp(log_variance.astype(jnp.float32) / 2)
        key = fold(originals.key, Draw.ENCODING + originals.image_index)
        latents = mean + deviation * normal(key, mean.shape[1:])
        return Given(latents * self.scaling_factor, originals.repaint)

    def begin(
        self, weights: Weights, request: BatchInputs, given: Given
    ) -> tuple[Conditions, SamplerState]:
        """Encode the prompts, draw the noise and mix it with what is given."""
        slots, *size = given.latents.shape
        prompt = self.prompts(weights.text, request.tokens)
        hidden, pooled = jax.tree.map(lambda x: x.astype(self.dtype), prompt)
        height, width = (side * self.pixels_per_latent for side in size[:2])
        # The picture whole, from its corner: the defaults of diffusers.
        time_ids = (height, width, 0, 0, height, width)
        text = self._denoiser(weights.unet).read(hidden, pooled, time_ids)
        noise = normal(fold(request.key, Draw.START + request.image_index), tuple(size))
        start = request.start[:, :, None, None, None]
        conditions = Conditions(
            text=text,
            guidance=request.guidance,
            rows=request.rows,
            calls=request.calls,
            given=given,
            noise=noise,
            step_key=fold(request.key, Draw.STEPS + request.image_index),
        )
        return conditions, SamplerState(
            latents=start[:, 0] * given.latents + start[:, 1] * noise,
            history=jnp.zeros((slots, LAGS - 1, *size), jnp.float32),
            position=jnp.zeros(slots, jnp.int32),
            clean=given.latents,
        )

    def step(
        self, unet: Arrays, conditions: Conditions, state: SamplerState, *, guidance: bool = True
    ) -> tuple[SamplerState, jax.Array]:
        """One row of every slot that has rows left; also the rows each has done, int32 `[b]`.

        Without `guidance`, which then no slot may want, the UNet sees the prompts alone. `begin`
        reads the negative ones all the same: once, some percent of a step, for a program fewer.
        """
        row = coefficients.row_at(conditions.rows, state.position)
        timestep = coefficients.timestep(row)
        output = self._predict(unet, conditions, state.latents, timestep, 2 if guidance else 1)
        fresh = normal(fold(conditions.step_key, state.position), state.latents.shape[1:])
        painted, history = coefficients.step(state.latents, output, state.history, fresh, row)
        given = conditions.given
        kept = coefficients.arriving(row, given.latents, conditions.noise)
        imagined = coefficients.clean(row, state.latents, output)
        moved = SamplerState(
            latents=jnp.where(given.repaint, painted, kept),
            history=history,
            position=state.position + 1,
            clean=jnp.where(given.repaint, imagined, given.latents),
        )
        going = state.position < conditions.calls
        state = jax.tree.map(
            lambda new, old: jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            moved,
            state,
        )
        return state, state.position

    def _predict(
        self,
        unet: Arrays,
        conditions: Conditions,
        latents: jax.Array,
        timestep: jax.Array,
        prompts: int,
    ) -> jax.Array:
        """The UNet's output for the last one or two `prompts` of each slot, guided where there are
        two; float32 `[b, h, w, c]`."""
        slots = len(latents)
        inputs = jnp.repeat(latents.astype(self.dtype), prompts, axis=0)  # [b * p, h, w, c]
        text = jax.tree.map(
            lambda x: x[:, -prompts:].reshape(slots * prompts, *x.shape[2:]), conditions.text
        )
        outputs = self._denoiser(unet)(inputs, jnp.repeat(timestep, prompts), text)
        outputs = outputs.astype(jnp.float32).reshape(slots, prompts, *latents.shape[1:])
        return outputs[:, 0] if prompts == 1 else guided(outputs, conditions.guidance)

    def _denoiser(self, unet: Arrays) -> UNet:
        return cast(UNet, nnx.merge(self.unet, unet))

    def _autoencoder(self, weights: Weights) -> Vae:
        return cast(Vae, nnx.merge(self.vae, weights.vae))

    def preview(self, state: SamplerState, colours: jax.Array) -> jax.Array:
        """uint8 `[b, h, w, 3]`: latents as colours, by `colours [c + 1, 3]`."""
        pixels = state.clean @ colours[:-1] + colours[-1]
        return jnp.round(jnp.clip(pixels, 0, 1) * 255).astype(jnp.uint8)

    def decode(self, weights: Weights, state: SamplerState) -> Decoded:
        """The latents as pictures; black, as in diffusers, where the safety checker says so."""
        latents = (state.latents / self.scaling_factor).astype(self.dtype)
        pixels = self._autoencoder(weights).decode(latents)
        pixels = pixels.astype(jnp.float32)
        pictures = jnp.round(jnp.clip(pixels / 2 + 0.5, 0, 1) * 255).astype(jnp.uint8)
        finite = jnp.isfinite(pixels).all(axis=(1, 2, 3))
        if self.safety is None or weights.safety is None:
            return Decoded(pictures, finite, jnp.zeros_like(finite))
        flagged = nnx.merge(self.safety, weights.safety)(pictures)
        return Decoded(jnp.where(flagged[:, None, None, None], 0, pictures), finite, flagged)
