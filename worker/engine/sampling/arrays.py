"""Name the arrays that the programs of image generation take and return.

The leading axis of all but the weights is the slot. This module computes nothing.

Axes: b slots, h w latent size, H W pixels, c latent channels, 2 negative prompt and prompt, e text
encoders, k chunks of a prompt, n tokens.
"""

from typing import Any, NamedTuple

import jax

from imagefleet.worker.engine.checkpoint.weights import Params


class Weights(NamedTuple):
    """It has the parameters of the networks."""

    text: tuple[Params, ...]
    """It has the parameters of each text encoder. The first is that of `TextEncoding`, if the model
    has one; it is empty where the host has them."""
    denoiser: Params
    vae: Params
    safety: Params | None

    def without_text_encoder(self) -> "Weights":
        """Return the weights with nothing in the place of the first text encoder."""
        return self._replace(text=({}, *self.text[1:]))


class GuidanceLimits(NamedTuple):
    """It has what limits the guidance of models that take `cfg_normalization` and
    `cfg_truncation`."""

    normalization: Any
    """It is the image's `cfg_normalization`, float32 `[b]`."""
    last_timestep: Any
    """It is the last timestep with guidance, float32 `[b]`. Later ones, which are lower, have
    none."""


class Control(NamedTuple):
    """It says how the ControlNets of a model steer each slot."""

    scales: Any
    """They are the `controlnet_conditioning_scale` of each net, float32 `[b, nets]`. 0: the slot
    does not use the net."""
    calls: Any
    """It has the first call of the denoiser with the slot's nets, and the first one without again,
    int32 `[b, 2]`."""


class BatchInputs(NamedTuple):
    """It has the inputs of a batch. They are numpy arrays on the host, then split by slot over
    devices."""

    tokens: Any
    """It is a tuple with an array for each text encoder, int32 `[b, 2, k, n]`: k chunks of a
    prompt, each of as many tokens as this encoder takes."""
    has_negative: Any
    """bool `[b]`: whether a negative prompt is given, even an empty one."""
    clip_skip: Any
    """int32 `[b]`: the last layers of the text encoders that the prompt skips."""
    key: Any
    """It is the seed as a threefry key, uint32 `[b, 2]`: its high half and its low half."""
    image_index: Any
    """It is the index of the image, uint32 `[b]`."""
    initial_mix: Any
    """It has the factors of the init latents and of the noise in the first latents, float32
    `[b, 2]`."""
    guidance: Any
    """It is the guidance scale, float32 `[b]`."""
    guidance_rescale: Any
    """It is the image's `guidance_rescale`, float32 `[b]`, 0 to 1."""
    rows: Any
    """They are the rows of the coefficient tables, float32 `[b, calls, COLUMNS]`, padded."""
    calls: Any
    """int32 `[b]`: the number of rows that are not padding. 0 in a padding slot."""
    lora_scales: Any = None
    """float32 `[b, LoRA]`: the scale of each LoRA that jobs may use. None if there are none."""
    image_guidance: Any = None
    """It is the scale of the guidance by an image, float32 `[b]`. None means that the model has
    none."""
    token_weights: Any = None
    """They are float32, in the shapes of `tokens`. None means that prompts have no weights, and one
    chunk."""
    used_chunks: Any = None
    """int32 `[b]`: the denoiser reads this many chunks, the first ones. None means that prompts
    have no weights."""
    text_states: Any = None
    """They are the hidden states of the texts, `[b, 2, n, width]`, if they are made before `begin`;
    `[b, 1, n, width]` if only prompts are read. Those of padding are 0."""
    guidance_limits: Any = None
    """It is `GuidanceLimits`. None means that the model takes none."""
    true_guidance: Any = None
    """It is the image's `true_cfg_scale`, float32 `[b]`, 1 without a negative prompt. None means
    that the model takes none."""
    has_image: Any = None
    """bool `[b]`: whether the slot has a reference image. None means that the model takes none."""
    control: Control | None = None
    """None means that the model has no ControlNets."""


class ControlImages(NamedTuple):
    """It has the control images of a batch. A slot without one has zeros."""

    pixels: Any
    """They are uint8 `[b, H, W, 3]`."""
    net: Any
    """It is the number of the slot's ControlNet, int32 `[b]`. -1 means that it has none."""


class InitImages(NamedTuple):
    """It has the init images of a batch. A slot without one has zeros, and a mask of True."""

    pixels: Any
    """They are uint8 `[b, H, W, 3]`."""
    inpaint_mask: Any
    """It is bool `[b, H, W, 1]`: True where the image is generated, False where it is kept."""
    key: Any
    image_index: Any
    """`key` and `image_index` are those of `BatchInputs`."""


class InitLatents(NamedTuple):
    """It has VAE latents of the init images. A slot without one has zeros, and a mask of True."""

    latents: Any
    """They are float32 `[b, h, w, c]`."""
    inpaint_mask: Any
    """It is bool `[b, h, w, 1]`, like that of `InitImages`."""
    image_channels: Any = None
    """float32 `[b, h, w, i]`: the channels that the denoiser gets beside the latents, or latents of
    a reference image. None means that it gets none."""
    control_map: Any = None
    """It is the embedding of the control image, `[b, h, w, width]` in the dtype of the programs,
    zeros in a slot without one. None means that the model has no ControlNets."""


class Conditions(NamedTuple):
    """It has the inputs of a step that stay the same over all steps."""

    text: Any
    """The text as the denoiser attends to it, a tree of `[b, 2, …]`: see `Denoiser`."""
    guidance: jax.Array
    guidance_rescale: jax.Array
    rows: jax.Array
    calls: jax.Array
    init_latents: InitLatents
    noise: jax.Array
    """It is the initial noise, float32 `[b, h, w, c]`. Inpainting also adds it to the kept
    parts."""
    step_key: jax.Array
    """uint32 `[b, 2]`: the key of the noise that some schedulers add at each step."""
    lora_scales: jax.Array | None = None
    image_guidance: jax.Array | None = None
    guidance_limits: GuidanceLimits | None = None
    true_guidance: jax.Array | None = None
    has_image: jax.Array | None = None
    control: Control | None = None
    """`lora_scales`, `image_guidance`, `guidance_limits`, `true_guidance`, `has_image` and
    `control` are those of `BatchInputs`."""


class SamplerState(NamedTuple):
    """It has the arrays that a step changes."""

    latents: jax.Array
    """They are float32 `[b, h, w, c]`."""
    history: jax.Array
    """It has the h of earlier rows, the latest first, float32 `[b, LAGS - 1, h, w, c]`."""
    position: jax.Array
    """It is the next row of each slot, int32 `[b]`."""
    predicted_x0: jax.Array
    """It is the x0 that the last step predicted, for previews: float32 `[b, h, w, c]`."""


class Decoded(NamedTuple):
    """It has the results of a batch."""

    images: jax.Array
    """They are uint8 `[b, H, W, 3]`."""
    finite: jax.Array
    """bool `[b]`: whether the decoder's output is free of NaN and infinity."""
    flagged: jax.Array
    """It says whether the safety checker made the image black, bool `[b]`."""
