"""List the pipelines of diffusers that run FLUX.1, with their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.shared.jobs.default_strengths import NO_STRENGTH, DefaultStrengths
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.sampling.image_input import ImageInput


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """It is one pipeline. Its numbers are its defaults in diffusers."""

    num_inference_steps: int
    guidance_scale: float
    image_use: ImageUse
    true_guidance: bool = False
    """Whether it has `true_cfg_scale`."""
    image_input: ImageInput = ImageInput.NONE


PIPELINES: Final[Mapping[str, Pipeline]] = {
    "FluxPipeline": Pipeline(
        num_inference_steps=28,
        guidance_scale=3.5,
        # These are the defaults of FluxImg2ImgPipeline and FluxInpaintPipeline.
        image_use=ImageUse(default_strengths=DefaultStrengths(image=0.6, mask=0.6, rounds_up=True)),
        true_guidance=True,
    ),
    "FluxFillPipeline": Pipeline(
        num_inference_steps=50,
        guidance_scale=30.0,
        image_use=ImageUse(
            required=("image", "mask_image"),
            default_strengths=DefaultStrengths(image=1.0, mask=1.0, rounds_up=True),
        ),
        image_input=ImageInput.FILLED,
    ),
    "FluxKontextPipeline": Pipeline(
        num_inference_steps=28,
        guidance_scale=3.5,
        image_use=ImageUse(default_strengths=NO_STRENGTH),
        true_guidance=True,
        image_input=ImageInput.REFERENCE,
    ),
}
"""It has the pipelines by class name."""
