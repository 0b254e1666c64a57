"""Ask diffusers for the images of a drawn checkpoint of Z-Image.

This runs in the environment of `make parity`. It draws the weights of the networks that diffusers
builds from the configs, so that both sides read the same files.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    ZImageImg2ImgPipeline,
    ZImageInpaintPipeline,
    ZImagePipeline,
)
from diffusers.pipelines.z_image import (
    pipeline_z_image,
    pipeline_z_image_img2img,
    pipeline_z_image_inpaint,
)
from PIL import Image

from tools.parity.fuzz.flow_truth import choose_scheduler, draw_weights, merge_loras, ours_noise
from tools.parity.known.write import init_image, inpaint_mask
from tools.parity.levels import to_levels

_PIPELINES: Final = (pipeline_z_image, pipeline_z_image_img2img, pipeline_z_image_inpaint)


@torch.no_grad()
def generate(description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the images of the job, uint8 `[n, h, w, 3]`.

    Raises:
        Exception: diffusers refuses the checkpoint or the job.
    """
    folder, job = Path(description["folder"]), description["job"]
    draw_weights(folder)
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    merge_loras(pipeline, folder, description["loras"])
    if job["scheduler"]:
        choose_scheduler(pipeline, job["scheduler"])
    options = {}
    if job["strength"] is not None:
        kind: Any = ZImageInpaintPipeline if job["is_masked"] else ZImageImg2ImgPipeline
        pipeline = kind(**pipeline.components)
        options = {"strength": job["strength"], "image": Image.fromarray(init_image(job["side"]))}
        if job["is_masked"]:
            options["mask_image"] = Image.fromarray(inpaint_mask(job["side"]))
    elif not isinstance(pipeline, ZImagePipeline):
        raise TypeError(f"{type(pipeline).__name__} needs an image")
    pipeline.set_progress_bar_config(disable=True)
    with ours_noise(_PIPELINES):
        images = pipeline(
            prompt=job["prompts"],
            negative_prompt=job["negative_prompts"],
            height=job["side"],
            width=job["side"],
            num_inference_steps=job["steps"],
            guidance_scale=job["guidance"],
            cfg_normalization=job["cfg_normalization"],
            cfg_truncation=job["cfg_truncation"],
            output_type="np",
            **options,
        ).images
    return to_levels(images)
