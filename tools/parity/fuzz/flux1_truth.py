"""Ask diffusers for the images of a drawn checkpoint of FLUX.1.

This runs in the environment of `make parity`. It draws the weights of the networks that diffusers
builds from the configs, so that both sides read the same files.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    FluxFillPipeline,
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxPipeline,
)
from diffusers.pipelines.flux import (
    pipeline_flux,
    pipeline_flux_fill,
    pipeline_flux_img2img,
    pipeline_flux_inpaint,
)
from PIL import Image

from tools.parity.flow.flux1_converters import narrow_converters
from tools.parity.fuzz.flow_truth import choose_scheduler, draw_weights, merge_loras, ours_noise
from tools.parity.known.write import init_image, inpaint_mask
from tools.parity.levels import to_levels

_PIPELINES: Final = (
    *(pipeline_flux, pipeline_flux_fill),
    *(pipeline_flux_img2img, pipeline_flux_inpaint),
)
_NOT_SHARED: Final = ("image_encoder", "feature_extractor")
"""The pipelines for images do not take these parts of FluxPipeline."""


@torch.no_grad()
def generate(description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the images of the job, uint8 `[n, h, w, 3]`.

    Raises:
        Exception: diffusers refuses the checkpoint or the job.
    """
    folder, job = Path(description["folder"]), description["job"]
    draw_weights(folder)
    pipeline: Any = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    with narrow_converters():
        merge_loras(pipeline, folder, description["loras"])
    if job["scheduler"]:
        choose_scheduler(pipeline, job["scheduler"])
    options: dict[str, Any] = {}
    fills = isinstance(pipeline, FluxFillPipeline)
    if not fills and not isinstance(pipeline, FluxPipeline):
        raise TypeError(f"{type(pipeline).__name__} is another pipeline")
    if job["strength"] is not None:
        options = {"strength": job["strength"], "image": Image.fromarray(init_image(job["side"]))}
        if job["is_masked"]:
            options["mask_image"] = Image.fromarray(inpaint_mask(job["side"]))
        if not fills:
            parts = pipeline.components.items()
            kind: Any = FluxInpaintPipeline if job["is_masked"] else FluxImg2ImgPipeline
            pipeline = kind(**{name: part for name, part in parts if name not in _NOT_SHARED})
    if not fills:
        options["negative_prompt"] = job["negative_prompts"]
        options["true_cfg_scale"] = job["true_cfg_scale"]
    pipeline.set_progress_bar_config(disable=True)
    with ours_noise(_PIPELINES, patch_side=2):
        images = pipeline(
            prompt=job["prompts"],
            height=job["side"],
            width=job["side"],
            num_inference_steps=job["steps"],
            guidance_scale=job["guidance"],
            # docs/models.md says how many tokens models have that read no guidance scale.
            max_sequence_length=512 if pipeline.transformer.config.guidance_embeds else 256,
            output_type="np",
            **options,
        ).images
    return to_levels(images)
