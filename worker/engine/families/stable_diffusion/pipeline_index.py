"""Read `model_index.json`: the pipeline of a checkpoint and the class of each of its parts.

Input: the parsed JSON. Output: the classes. diffusers builds every part as the class that this file
names, and not as the one that the part's own config names, so the classes are checked here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.default_strengths import NO_STRENGTH, STABLE_DIFFUSION_XL
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, has_part
from imagefleet.worker.engine.checkpoint.index_parts import require_part
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

SCHEDULER: Final = "scheduler/scheduler_config.json"
CLIP_TEXT: Final = "CLIPTextModel"
CLIP_TEXT_PROJECTED: Final = "CLIPTextModelWithProjection"
_SKIP_PRK: Final = "skip_prk_steps"
_STEPS_OFFSET: Final = "steps_offset"
_AESTHETIC: Final = "requires_aesthetics_score"
_TOKENIZERS: Final = ("CLIPTokenizer", "CLIPTokenizerFast")
_IMAGE_PROCESSORS: Final = (
    *("CLIPFeatureExtractor", "CLIPImageProcessor"),
    *("CLIPImageProcessorFast", "CLIPImageProcessorPil"),
)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """It is a diffusers pipeline class that this engine runs, with the folders of its parts."""

    text_encoders: tuple[str, ...]
    text_encoder_classes: tuple[str, ...]
    tokenizers: tuple[str, ...]
    guidance_scale: float
    """It is the default of this pipeline in diffusers."""
    num_inference_steps: int
    """It is the default of this pipeline in diffusers, too."""
    scheduler_fields: Mapping[str, Any]
    """The pipeline sets these fields of scheduler_config.json, whatever the file says, if the file
    or the scheduler has them."""
    old_sample_size: int | None
    """The least `sample_size` of a UNet saved before diffusers 0.9, whose default was wrong."""
    may_have_safety_checker: bool
    """Whether the pipeline uses a safety checker that model_index.json lists."""
    is_xl: bool
    """Whether the UNet gets penultimate states, the pooled state and numbers about the image."""
    needs_guidance_embedding: bool = False
    """Whether the pipeline gives the UNet the guidance scale (LCM) and applies no guidance."""
    has_aesthetic_scores: bool = False
    """Whether one of the numbers about the image is an aesthetic score (SDXL's refiner)."""
    normalises_latents: bool
    """Whether the pipeline knows `latents_mean` and `latents_std` of an autoencoder."""
    zeros_absent_negatives: bool
    """Whether the pipeline knows `force_zeros_for_empty_prompt`, which is true by default. Other
    pipelines of diffusers ignore it."""
    image_input: ImageInput = ImageInput.NONE
    splits_denoising: bool = False
    """Whether the pipeline has `denoising_end`, and `denoising_start` with latents as its image. A
    text-to-image pipeline counts with the image-to-image pipeline that diffusers makes of it."""
    image_use: ImageUse = field(default_factory=ImageUse)


_SD: Final = Pipeline(
    text_encoders=("text_encoder",),
    text_encoder_classes=(CLIP_TEXT,),
    tokenizers=("tokenizer",),
    guidance_scale=7.5,
    num_inference_steps=50,
    scheduler_fields={_STEPS_OFFSET: 1, "clip_sample": False},
    old_sample_size=64,
    may_have_safety_checker=True,
    is_xl=False,
    normalises_latents=False,
    zeros_absent_negatives=False,
)
_XL_IMAGE: Final = ImageUse(default_strengths=STABLE_DIFFUSION_XL)
_XL: Final = Pipeline(
    text_encoders=("text_encoder", "text_encoder_2"),
    text_encoder_classes=(CLIP_TEXT, CLIP_TEXT_PROJECTED),
    tokenizers=("tokenizer", "tokenizer_2"),
    guidance_scale=5.0,
    num_inference_steps=50,
    scheduler_fields={},
    old_sample_size=None,
    may_have_safety_checker=False,
    is_xl=True,
    normalises_latents=True,
    zeros_absent_negatives=True,
    image_use=_XL_IMAGE,
)
_XL_SPLIT: Final = replace(_XL, splits_denoising=True)
_IMAGE_TO_IMAGE: Final = "StableDiffusionXLImg2ImgPipeline"
_INPAINTING: Final = ("image", "mask_image")
_EDITING: Final = ImageUse(
    required=("image",), default_strengths=NO_STRENGTH, default_image_guidance_scale=1.5
)

PIPELINES: Final[Mapping[str, Pipeline]] = {
    "StableDiffusionPipeline": _SD,
    "LatentConsistencyModelPipeline": replace(
        _SD,
        guidance_scale=8.5,
        num_inference_steps=4,
        scheduler_fields={},
        old_sample_size=None,
        needs_guidance_embedding=True,
    ),
    "StableDiffusionInpaintPipeline": replace(
        _SD,
        scheduler_fields={_STEPS_OFFSET: 1, _SKIP_PRK: True},
        image_input=ImageInput.MASKED,
        image_use=ImageUse(required=_INPAINTING),
    ),
    "StableDiffusionInstructPix2PixPipeline": replace(
        _SD,
        num_inference_steps=100,
        scheduler_fields={},
        old_sample_size=None,
        image_input=ImageInput.EDITED,
        image_use=_EDITING,
    ),
    "StableDiffusionXLPipeline": _XL_SPLIT,
    _IMAGE_TO_IMAGE: replace(_XL_SPLIT, image_use=replace(_XL_IMAGE, required=("image",))),
    "StableDiffusionXLInpaintPipeline": replace(
        _XL,
        guidance_scale=7.5,
        image_input=ImageInput.MASKED,
        image_use=replace(_XL_IMAGE, required=_INPAINTING),
    ),
    "StableDiffusionXLInstructPix2PixPipeline": replace(
        _XL, num_inference_steps=100, image_input=ImageInput.EDITED, image_use=_EDITING
    ),
}
"""It has the pipelines by class name. The numbers are diffusers' defaults."""


@dataclass(frozen=True, kw_only=True)
class PipelineIndex:
    """It has what `model_index.json` says."""

    pipeline: Pipeline
    text_encoder_classes: tuple[str, ...]
    """It is `CLIP_TEXT` or `CLIP_TEXT_PROJECTED` for each text encoder."""
    scheduler_class: str
    has_safety_checker: bool
    force_zeros_for_empty_prompt: bool
    """Whether the states of the negative prompt are zeros if none is given (SDXL)."""

    def noise_schedule(self, file: Mapping[str, Any]) -> NoiseSchedule:
        """Return the noise schedule of scheduler_config.json with the fields that the pipeline
        sets.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        set_here = {
            name: value
            for name, value in self.pipeline.scheduler_fields.items()
            if name in file or _has_field(self.scheduler_class, name)
        }
        return NoiseSchedule.from_json({**file, **set_here}, self.scheduler_class)

    @classmethod
    def from_json(cls, index: Mapping[str, Any]) -> Self:
        """Read the file.

        Raises:
            CheckpointError: It names a pipeline or a class that this engine does not run.
        """
        name = str(index.get("_class_name"))
        if (pipeline := PIPELINES.get(name)) is None:
            raise CheckpointError(
                f"{INDEX}: _class_name is {name!r}; this engine runs {', '.join(PIPELINES)}"
            )
        if name == _IMAGE_TO_IMAGE:
            pipeline = _image_to_image(pipeline, index)
        require = partial(require_part, index)
        for folder in pipeline.tokenizers:
            require(folder, "transformers", _TOKENIZERS)
        require("unet", "diffusers", ("UNet2DConditionModel",))
        require("vae", "diffusers", ("AutoencoderKL",))
        has_safety_checker = pipeline.may_have_safety_checker and has_part(index, "safety_checker")
        if has_safety_checker:
            require("safety_checker", "stable_diffusion", ("StableDiffusionSafetyChecker",))
            require("feature_extractor", "transformers", _IMAGE_PROCESSORS)
        if index.get("add_watermarker"):
            raise CheckpointError(
                f"{INDEX}: add_watermarker is {index['add_watermarker']!r}, but this engine adds "
                "no watermark to the pixels; set it to false if the model's licence allows that"
            )
        for name, known in (
            (_AESTHETIC, pipeline.has_aesthetic_scores),
            ("is_cosxl_edit", False),
        ):
            if index.get(name) and not known:
                raise CheckpointError(f"{INDEX}: {name} is {index[name]!r}; it must be false")
        return cls(
            pipeline=pipeline,
            text_encoder_classes=tuple(
                require(folder, "transformers", pipeline.text_encoder_classes)
                for folder in pipeline.text_encoders
            ),
            scheduler_class=require("scheduler", "diffusers"),
            has_safety_checker=has_safety_checker,
            force_zeros_for_empty_prompt=pipeline.zeros_absent_negatives and _force_zeros(index),
        )


def _image_to_image(pipeline: Pipeline, index: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline of a checkpoint. That of the refiner has one text encoder only."""
    aesthetic = index.get(_AESTHETIC, False)
    if not isinstance(aesthetic, bool):
        raise CheckpointError(f"{INDEX}: {_AESTHETIC} is {aesthetic!r}; it must be true or false")
    pipeline = replace(pipeline, has_aesthetic_scores=aesthetic)
    if has_part(index, "text_encoder") or has_part(index, "tokenizer"):
        return pipeline
    return replace(
        pipeline,
        text_encoders=pipeline.text_encoders[1:],
        text_encoder_classes=pipeline.text_encoder_classes[1:],
        tokenizers=pipeline.tokenizers[1:],
    )


def _has_field(scheduler_class: str, name: str) -> bool:
    """Return whether a scheduler of diffusers has one of the fields that pipelines set."""
    if name == _SKIP_PRK:
        return scheduler_class == "PNDMScheduler"
    return name != _STEPS_OFFSET or scheduler_class != "DPMSolverSinglestepScheduler"


def _force_zeros(index: Mapping[str, Any]) -> bool:
    name = "force_zeros_for_empty_prompt"
    value = index.get(name, True)
    if not isinstance(value, bool):
        raise CheckpointError(f"{INDEX}: {name} is {value!r}; it must be true or false")
    return value
