"""Name the arrays that the programs of image generation take and return.

The leading axis of all but the weights is the slot. This module computes nothing.

Axes: b slots, h w latent size, H W pixels, c latent channels, 2 negative prompt and prompt, e text
encoders, k chunks of a prompt, n tokens.
"""

from typing import Any, NamedTuple

import jax

from imagefleet.worker.engine.checkpoint.weights import Params


class Weights(NamedTuple):
    """The parameters of the networks."""

    text: tuple[Params, ...]
    """Those of each text encoder."""
    denoiser: Params
    vae: Params
    safety: Params | None


class BatchInputs(NamedTuple):
    """The inputs of a batch. They are numpy arrays on the host, then split by slot over devices."""

    tokens: Any
    """A tuple with an array for each text encoder, int32 `[b, 2, k, n]`: k chunks of a prompt of as
    many tokens as this encoder takes."""
    has_negative: Any
    """bool `[b]`: whether a negative prompt is given, be it empty."""
    clip_skip: Any
    """int32 `[b]`: the last layers of the text encoders that the prompt skips."""
    key: Any
    """uint32 `[b, 2]`: the seed's high and low half, which form a threefry key."""
    image_index: Any
    """uint32 `[b]`."""
    initial_mix: Any
    """float32 `[b, 2]`: the factors of the init latents and of the noise in the first latents."""
    guidance: Any
    """float32 `[b]`."""
    guidance_rescale: Any
    """float32 `[b]`, 0 to 1."""
    rows: Any
    """float32 `[b, calls, COLUMNS]`, padded."""
    calls: Any
    """int32 `[b]`: the number of rows that are not padding. 0 in a padding slot."""
    lora_scales: Any = None
    """float32 `[b, LoRA]`: the scale of each LoRA that jobs may use. None if there are none."""
    image_guidance: Any = None
    """float32 `[b]`: the scale of the guidance by an image. None: the model has none."""
    token_weights: Any = None
    """float32, as `tokens`. None: prompts have no weights, and one chunk."""
    used_chunks: Any = None
    """int32 `[b]`: the first chunks, which the denoiser reads. None: prompts have no weights."""


class InitImages(NamedTuple):
    """The init images of a batch. Zeros, mask True, in a slot without one."""

    pixels: Any
    """uint8 `[b, H, W, 3]`."""
    inpaint_mask: Any
    """bool `[b, H, W, 1]`: True where the image is generated. It is kept elsewhere."""
    key: Any
    image_index: Any
    """Both as in `BatchInputs`."""


class InitLatents(NamedTuple):
    """VAE latents of the init images. Zeros, mask True, in a slot without one."""

    latents: Any
    """float32 `[b, h, w, c]`."""
    inpaint_mask: Any
    """bool `[b, h, w, 1]`."""
    image_channels: Any = None
    """float32 `[b, h, w, i]`: the channels that the denoiser gets beside the latents. None: it gets
    none."""


class Conditions(NamedTuple):
    """The inputs of a step that stay the same over all steps."""

    text: Any
    """The text as the denoiser attends to it, a tree of `[b, 2, …]`: see `Denoiser`."""
    guidance: jax.Array
    guidance_rescale: jax.Array
    rows: jax.Array
    calls: jax.Array
    init_latents: InitLatents
    noise: jax.Array
    """float32 `[b, h, w, c]`: the initial noise. Inpainting also adds it to the kept parts."""
    step_key: jax.Array
    """uint32 `[b, 2]`: the key of the noise that some schedulers add at each step."""
    lora_scales: jax.Array | None = None
    image_guidance: jax.Array | None = None
    """Both as in `BatchInputs`."""


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
