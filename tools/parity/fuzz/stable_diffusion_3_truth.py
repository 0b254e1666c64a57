"""Ask diffusers for the images of a drawn checkpoint of Stable Diffusion 3.

This runs in the environment of `make parity`. It draws the weights of the networks that diffusers
builds from the configs, so that both sides read the same files.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    DiffusionPipeline,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3InpaintPipeline,
    StableDiffusion3Pipeline,
)
from diffusers.pipelines.stable_diffusion_3 import (
    pipeline_stable_diffusion_3,
    pipeline_stable_diffusion_3_img2img,
    pipeline_stable_diffusion_3_inpaint,
)
from PIL import Image

from tools.parity.flow.stable_diffusion_3_truth import decode
from tools.parity.fuzz.flow_truth import choose_scheduler, draw_weights, merge_loras, ours_noise
from tools.parity.known.write import init_image, inpaint_mask
from tools.parity.levels import to_levels

_PIPELINES: Final = (
    pipeline_stable_diffusion_3,
    pipeline_stable_diffusion_3_img2img,
    pipeline_stable_diffusion_3_inpaint,
)

_OF_T5: Final = ("text_encoder_3", "tokenizer_3")


@torch.no_grad()
def generate(description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the images of the job, uint8 `[n, h, w, 3]`.

    Raises:
        Exception: diffusers refuses the checkpoint or the job.
    """
    folder, job = Path(description["folder"]), description["job"]
    draw_weights(folder)
    index = json.loads((folder / "model_index.json").read_text())
    # As its documentation says, diffusers takes a checkpoint without T5 only if it is told so.
    absent = {name: None for name in _OF_T5 if index.get(name) == [None, None]}
    pipeline: Any = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, **absent)
    if not isinstance(pipeline, StableDiffusion3Pipeline):
        raise TypeError(f"{type(pipeline).__name__} is another pipeline")
    merge_loras(pipeline, folder, description["loras"])
    if job["scheduler"]:
        choose_scheduler(pipeline, job["scheduler"])
    options: dict[str, Any] = {}
    if job["strength"] is not None:
        options = {"strength": job["strength"], "image": Image.fromarray(init_image(job["side"]))}
        if job["is_masked"]:
            options["mask_image"] = Image.fromarray(inpaint_mask(job["side"]))
        is_masked = job["is_masked"]
        kind = StableDiffusion3InpaintPipeline if is_masked else StableDiffusion3Img2ImgPipeline
        pipeline = kind(**pipeline.components)
    pipeline.set_progress_bar_config(disable=True)
    with ours_noise(_PIPELINES):
        latents = pipeline(
            prompt=job["prompts"],
            negative_prompt=job["negative_prompts"],
            height=job["side"],
            width=job["side"],
            num_inference_steps=job["steps"],
            guidance_scale=job["guidance"],
            clip_skip=job["clip_skip"],
            output_type="latent",
            **options,
        ).images
    return to_levels(decode(pipeline, latents))
