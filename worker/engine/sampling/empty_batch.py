"""Make the input arrays of a batch in which every slot is padding.

Input: the sizes of a model's batches. Output: `BatchInputs`, `InitImages` and `InitLatents` in
numpy. Programs are compiled for these arrays, and the slots of a batch are written into them.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.sampling.arrays import (
    BatchInputs,
    Control,
    ControlImages,
    GuidanceLimits,
    InitImages,
    InitLatents,
)
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.coefficients import COLUMNS
from imagefleet.worker.engine.schedulers.registry import max_calls


@dataclass(frozen=True, kw_only=True)
class EmptyBatch:
    """It is a batch in which every slot is padding. Its arrays have the shapes of every batch."""

    slots: int
    calls: int
    """The most calls of the denoiser that a job may need."""
    token_lengths: tuple[int, ...]
    """It is the number of tokens of a prompt for each text encoder."""
    latent_channels: int
    pixels_per_latent: int
    loras: int = 0
    """The number of LoRA that jobs may use."""
    image_input: ImageInput = ImageInput.NONE
    prompt_chunks: int = 0
    """A prompt with weights has at most this many chunks. 0 means that there are no such
    prompts."""
    limits_guidance: bool = False
    """Whether jobs may have `cfg_normalization` and `cfg_truncation`."""
    true_guidance: bool = False
    """Whether jobs may have `true_cfg_scale`."""
    text_width: int = 0
    """It is the width of `text_states`. 0 means that there are none."""
    texts_of_slot: int = 2
    """`text_states` has those of this many texts of a slot."""
    dtype: DTypeLike = np.float32
    """It is that of `text_states` and `control_map`."""
    control_nets: int = 0
    """The number of ControlNets that jobs may use."""
    control_width: int = 0
    """It is the number of channels of `control_map`."""

    @classmethod
    def of(
        cls,
        programs: DiffusionPrograms,
        slots: int,
        token_lengths: tuple[int, ...],
        max_steps: int,
        loras: int = 0,
        prompt_chunks: int = 0,
    ) -> Self:
        """Return the batch of these programs. `max_steps` is the most that a job may ask for."""
        encoding = programs.denoiser.text_encoding
        return cls(
            slots=slots,
            calls=max_calls(max_steps),
            token_lengths=token_lengths,
            latent_channels=programs.latent_channels,
            pixels_per_latent=programs.pixels_per_latent,
            loras=loras,
            image_input=programs.denoiser.image_input,
            prompt_chunks=prompt_chunks,
            limits_guidance=programs.denoiser.limits_guidance,
            true_guidance=programs.denoiser.true_guidance,
            text_width=0 if encoding is None else encoding.width,
            texts_of_slot=2 if encoding is None else encoding.texts,
            dtype=programs.dtype,
            control_nets=0 if programs.control is None else programs.control.count,
            control_width=0 if programs.control is None else programs.control.width,
        )

    def inputs(self) -> BatchInputs:
        """Return the inputs of the batch."""
        slots, is_edited = self.slots, self.image_input is ImageInput.EDITED
        takes_reference = self.image_input is ImageInput.REFERENCE
        chunks = max(1, self.prompt_chunks)
        sizes = [(slots, 2, chunks, length) for length in self.token_lengths]
        return BatchInputs(
            tokens=tuple(np.zeros(size, np.int32) for size in sizes),
            has_negative=np.zeros(slots, np.bool_),
            clip_skip=np.zeros(slots, np.int32),
            key=np.zeros((slots, 2), np.uint32),
            image_index=np.zeros(slots, np.uint32),
            initial_mix=np.zeros((slots, 2), np.float32),
            guidance=np.ones(slots, np.float32),
            guidance_rescale=np.zeros(slots, np.float32),
            rows=np.zeros((slots, self.calls, COLUMNS), np.float32),
            calls=np.zeros(slots, np.int32),
            lora_scales=np.zeros((slots, self.loras), np.float32) if self.loras else None,
            image_guidance=np.ones(slots, np.float32) if is_edited else None,
            token_weights=(
                tuple(np.ones(size, np.float32) for size in sizes) if self.prompt_chunks else None
            ),
            used_chunks=np.ones(slots, np.int32) if self.prompt_chunks else None,
            text_states=self._text_states(),
            guidance_limits=self._guidance_limits(),
            true_guidance=np.ones(slots, np.float32) if self.true_guidance else None,
            has_image=np.zeros(slots, np.bool_) if takes_reference else None,
            control=self._control(),
        )

    def _control(self) -> Control | None:
        if not self.control_nets:
            return None
        scales = np.zeros((self.slots, self.control_nets), np.float32)
        return Control(scales, np.zeros((self.slots, 2), np.int32))

    def _text_states(self) -> NDArray[Any] | None:
        if not self.text_width:
            return None
        size = (self.slots, self.texts_of_slot, self.token_lengths[0], self.text_width)
        return np.zeros(size, np.dtype(self.dtype))

    def texts(self, count: int) -> NDArray[np.int32]:
        """Return the ids of texts of padding, as `TextEncoding` takes them."""
        return np.zeros((count, self.token_lengths[0]), np.int32)

    def _guidance_limits(self) -> GuidanceLimits | None:
        if not self.limits_guidance:
            return None
        return GuidanceLimits(*np.zeros((2, self.slots), np.float32))

    def init_images(self, shape: Shape) -> InitImages:
        """Return the init images of the batch: no slot has one."""
        slots, size = self.slots, (self.slots, shape.height, shape.width)
        return InitImages(
            pixels=np.zeros((*size, 3), np.uint8),
            inpaint_mask=np.ones((*size, 1), np.bool_),
            key=np.zeros((slots, 2), np.uint32),
            image_index=np.zeros(slots, np.uint32),
        )

    def init_latents(self, shape: Shape) -> InitLatents:
        """Return the init latents of a batch in which no slot has an init image."""
        factor = self.pixels_per_latent
        size = (self.slots, shape.height // factor, shape.width // factor)
        channels = self.image_input.channels(self.latent_channels, factor)
        return InitLatents(
            latents=np.zeros((*size, self.latent_channels), np.float32),
            inpaint_mask=np.ones((*size, 1), np.bool_),
            image_channels=np.zeros((*size, channels), np.float32) if channels else None,
            control_map=self._control_map(size),
        )

    def _control_map(self, size: tuple[int, ...]) -> NDArray[Any] | None:
        if not self.control_nets:
            return None
        return np.zeros((*size, self.control_width), np.dtype(self.dtype))

    def control_images(self, shape: Shape) -> ControlImages:
        """Return the control images of a batch in which no slot has one."""
        size = (self.slots, shape.height, shape.width, 3)
        return ControlImages(np.zeros(size, np.uint8), np.full(self.slots, -1, np.int32))
