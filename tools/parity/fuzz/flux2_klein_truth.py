"""Ask diffusers for the images of a drawn checkpoint of FLUX.2 klein.

This runs in the environment of `make parity`. It draws the weights of the networks that diffusers
builds from the configs, so that both sides read the same files.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import DiffusionPipeline, Flux2KleinPipeline
from diffusers.pipelines.flux2 import pipeline_flux2_klein

from tools.parity.fuzz.flow_truth import choose_scheduler, draw_weights, merge_loras, ours_noise
from tools.parity.levels import to_levels

_PIPELINES: Final = (pipeline_flux2_klein,)


@torch.no_grad()
def generate(description: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the images of the job, uint8 `[n, h, w, 3]`.

    Raises:
        Exception: diffusers refuses the checkpoint or the job.
    """
    folder, job = Path(description["folder"]), description["job"]
    draw_weights(folder)
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    if not isinstance(pipeline, Flux2KleinPipeline):
        raise TypeError(f"{type(pipeline).__name__} is another pipeline")
    merge_loras(pipeline, folder, description["loras"])
    if job["scheduler"]:
        choose_scheduler(pipeline, job["scheduler"])
    pipeline.set_progress_bar_config(disable=True)
    options: dict[str, Any] = {}
    if job["negative_prompts"] is not None:
        # It has no `negative_prompt`, but takes what `encode_prompt` makes of one.
        options["negative_prompt_embeds"], _ = pipeline.encode_prompt(job["negative_prompts"])
    with ours_noise(_PIPELINES):
        images = pipeline(
            prompt=job["prompts"],
            height=job["side"],
            width=job["side"],
            num_inference_steps=job["steps"],
            guidance_scale=job["guidance"],
            output_type="np",
            **options,
        ).images
    return to_levels(images)
