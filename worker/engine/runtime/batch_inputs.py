"""Build the input arrays of a batch from `ImageSpec`s.

Input: at most as many specs as there are slots. Output: full-sized `BatchInputs` and `InitImages`
in numpy. Slots without a spec are padding: their `calls` are 0, so no step changes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.jobs.parameter_types import GIVEN_EMPTY
from imagefleet.shared.jobs.prompt_weights import pieces_of
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.sampling.arrays import (
    BatchInputs,
    ControlImages,
    InitImages,
    InitLatents,
)
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.sampling.step_tables import StepTables
from imagefleet.worker.engine.schedulers.coefficients import TIMESTEP, CoefficientTable
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer


@dataclass(frozen=True)
class BatchInputBuilder:
    """The builder converts specs to input arrays."""

    empty: EmptyBatch
    info: ModelInfo
    tokenizer: PromptTokenizer
    tables: StepTables

    def inputs(self, specs: Sequence[ImageSpec], shape: Shape) -> BatchInputs:
        """Build the inputs of a batch of a shape; `specs[i]` takes slot i.

        Raises:
            ValueError: a scheduler or a LoRA that this model does not have, or a step count or a
                `clip_skip` out of range, a parameter of guidance that the model does not have, or
                weights in prompts of a worker that reads none.
            InvalidRequest: `denoising_start` or `denoising_end` leaves no step.
        """
        inputs = self.empty.inputs()
        for slot, spec in enumerate(specs):
            table = self.tables.of(spec, shape)
            self._set_prompts(inputs, slot, spec)
            inputs.has_negative[slot] = spec.negative_prompt != ""
            inputs.clip_skip[slot] = self._clip_skip(spec)
            inputs.key[slot] = divmod(spec.seed, 2**32)
            inputs.image_index[slot] = spec.image_index
            inputs.initial_mix[slot] = initial_mix(spec, table, self.empty.image_input)
            inputs.guidance[slot] = spec.guidance_scale
            inputs.guidance_rescale[slot] = self._guidance_rescale(spec)
            self._limit_guidance(inputs, slot, spec, table)
            self._set_true_guidance(inputs, slot, spec)
            if spec.image_guidance_scale is not None and inputs.image_guidance is not None:
                inputs.image_guidance[slot] = spec.image_guidance_scale
            inputs.rows[slot] = table.padded(inputs.rows.shape[1])
            inputs.calls[slot] = len(table.rows)
            if inputs.has_image is not None:
                inputs.has_image[slot] = spec.init_image is not None
            self._set_control(inputs, slot, spec, shape)
            for name, scale in spec.loras:
                inputs.lora_scales[slot, self._lora_number(name)] = scale
        return inputs

    def guided_calls(self, spec: ImageSpec, shape: Shape) -> int:
        """Return how many of its first calls of the denoiser need guidance."""
        if not spec.is_guided(self.info):
            return 0
        return self.tables.of(spec, shape).guided_calls(spec.cfg_truncation)

    def init_images(self, specs: Sequence[ImageSpec], shape: Shape) -> InitImages | None:
        """Collect the init images of a batch; None if no slot has one.

        Raises:
            ValueError: an init image does not have the shape of the batch.
        """
        if all(spec.init_image is None for spec in specs):
            return None
        arrays = self.empty.init_images(shape)
        for slot, spec in enumerate(specs):
            if (init_image := spec.init_image) is None:
                continue
            _require_shape("init image", init_image.pixels, shape)
            arrays.pixels[slot] = init_image.pixels
            if (mask := init_image.inpaint_mask) is not None:
                arrays.inpaint_mask[slot] = mask[..., None]
            arrays.key[slot] = divmod(spec.seed, 2**32)
            arrays.image_index[slot] = spec.image_index
        return arrays

    def control_images(self, specs: Sequence[ImageSpec], shape: Shape) -> ControlImages | None:
        """Collect the control images of a batch; None if no slot has one.

        Raises:
            ValueError: a control image does not have the shape of the batch.
        """
        if all(spec.control_image is None for spec in specs):
            return None
        arrays = self.empty.control_images(shape)
        for slot, spec in enumerate(specs):
            if spec.controlnet is None or spec.control_image is None:
                continue
            pixels = spec.control_image.pixels
            _require_shape("control image", pixels, shape)
            arrays.pixels[slot] = pixels
            arrays.net[slot] = self._control_net_number(spec.controlnet)
        return arrays

    def with_input_latents(
        self,
        specs: Sequence[ImageSpec],
        init_latents: InitLatents,
        split: Callable[[NDArray[np.float32]], Any],
    ) -> InitLatents:
        """Return init latents in which the slots that go on with input latents have those. If there
        is such a slot, this waits for the devices, and `split` places the latents on them again.

        Raises:
            ValueError: input latents do not have the shape of the batch.
        """
        if all(spec.input_latents is None for spec in specs):
            return init_latents
        latents = np.array(init_latents.latents)
        for slot, spec in enumerate(specs):
            if spec.input_latents is None:
                continue
            values = spec.input_latents.values
            if values.shape != latents.shape[1:]:
                raise ValueError(
                    f"the input latents have the array shape {values.shape}, "
                    f"but those of the batch have {latents.shape[1:]}"
                )
            latents[slot] = values
        return init_latents._replace(latents=split(latents))

    def _set_prompts(self, inputs: BatchInputs, slot: int, spec: ImageSpec) -> None:
        most = self.empty.prompt_chunks
        if spec.prompt_weighting and not most:
            raise ValueError(
                "this worker reads no weights in prompts; it has IMAGEFLEET_PROMPT_CHUNKS=0"
            )
        # Qwen has a token for the blank that stands for an empty text; CLIP drops blanks.
        negative = "" if spec.negative_prompt == GIVEN_EMPTY else spec.negative_prompt
        if self.info.true_guidance and not spec.is_guided(self.info):
            negative = spec.prompt  # so that no second text is encoded, which nothing reads
        prompts = [
            pieces_of(prompt, weighting=spec.prompt_weighting) for prompt in (negative, spec.prompt)
        ]
        chunks = self.tokenizer.chunks(
            prompts, max(1, most), most=most if spec.prompt_weighting else 1
        )
        for encoder, ids in enumerate(chunks.ids):
            inputs.tokens[encoder][slot] = ids
        if most:
            inputs.used_chunks[slot] = chunks.used
            for encoder, weights in enumerate(chunks.weights):
                inputs.token_weights[encoder][slot] = weights

    def _clip_skip(self, spec: ImageSpec) -> int:
        layers, most = spec.clip_skip or 0, self.info.max_clip_skip
        if not 0 <= layers <= most:
            raise ValueError(f"clip_skip={layers} is out of range; 0 to {most} are possible")
        return layers

    def _guidance_rescale(self, spec: ImageSpec) -> float:
        if spec.guidance_rescale and not self.info.rescales_guidance:
            raise ValueError(
                "this model does not take guidance_rescale; its pipeline in diffusers does not "
                "either"
            )
        return spec.guidance_rescale

    def _limit_guidance(
        self, inputs: BatchInputs, slot: int, spec: ImageSpec, table: CoefficientTable
    ) -> None:
        limits, guided = inputs.guidance_limits, table.guided_calls(spec.cfg_truncation)
        if limits is not None:
            limits.normalization[slot] = spec.cfg_normalization
            limits.last_timestep[slot] = table.rows[guided - 1, TIMESTEP] if guided else np.inf
        elif spec.cfg_normalization or spec.cfg_truncation < 1:
            raise ValueError(
                "this model does not take cfg_normalization or cfg_truncation; its pipeline in "
                "diffusers does not either"
            )

    def _set_true_guidance(self, inputs: BatchInputs, slot: int, spec: ImageSpec) -> None:
        if inputs.true_guidance is not None:
            inputs.true_guidance[slot] = spec.true_cfg_scale if spec.is_guided(self.info) else 1
        elif spec.true_cfg_scale != 1:
            raise ValueError(
                "this model does not take true_cfg_scale; its pipeline in diffusers does not either"
            )

    def _set_control(self, inputs: BatchInputs, slot: int, spec: ImageSpec, shape: Shape) -> None:
        if spec.controlnet is None:
            return
        number = self._control_net_number(spec.controlnet)
        if spec.control_image is None:
            raise ValueError(f"ControlNet {spec.controlnet!r} needs a control image")
        assert inputs.control is not None
        # As in diffusers, `denoising_end` does not shorten the steps that the shares are of.
        calls = len(self.tables.of(replace(spec, denoising_end=None), shape).rows)
        inputs.control.scales[slot, number] = spec.controlnet_conditioning_scale
        inputs.control.calls[slot] = controlled_calls(spec, calls)

    def _control_net_number(self, name: str) -> int:
        names = list(self.info.controlnets)
        if name not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"ControlNet {name!r} is not available; there are {known}")
        return names.index(name)

    def _lora_number(self, name: str) -> int:
        names = [lora.name for lora in self.info.job_loras]
        if name not in names:
            raise ValueError(f"LoRA {name!r} is not available; there are {', '.join(names)}")
        return names.index(name)


def initial_mix(
    spec: ImageSpec, table: CoefficientTable, image_input: ImageInput = ImageInput.NONE
) -> tuple[float, float]:
    """Return the factors of the init latents and of the noise in the first latents.

    As in diffusers, inpainting at strength 1 starts from noise alone, but image-to-image without a
    mask at strength 1 does not. A model that edits images, or takes one as a reference, starts from
    noise alone, too. Input latents have their noise already.
    """
    if spec.input_latents is not None:
        return table.input_scale, 0.0
    init_image = spec.init_image
    if init_image is None or image_input.is_whole:
        return 0.0, table.init_noise_sigma
    if init_image.mask_levels is not None and init_image.strength == 1:
        return 0.0, table.init_noise_sigma
    return table.start


def controlled_calls(spec: ImageSpec, calls: int) -> tuple[int, int]:
    """Return the first call of the denoiser with the ControlNet, and the first one after without.

    As in diffusers, a call runs the net if its share of all calls lies between start and end.
    """
    start, end = spec.control_guidance_start, spec.control_guidance_end
    with_net = [
        call for call in range(calls) if call / calls >= start and (call + 1) / calls <= end
    ]
    return (with_net[0], with_net[-1] + 1) if with_net else (0, 0)


def _require_shape(name: str, pixels: NDArray[np.uint8], shape: Shape) -> None:
    if pixels.shape != (shape.height, shape.width, 3):
        size = "x".join(map(str, pixels.shape[:2]))
        raise ValueError(
            f"the {name} is {size} pixels, but the batch is for {shape}; resize the image first"
        )
