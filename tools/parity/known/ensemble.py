"""diffusers' answers for SDXL's base and refiner that share the steps of an image.

There is no input. The output is, by scheduler and `|`: the latents that the base passes on, and
those after the refiner's last step; for Euler also the image, and the jobs in `OTHER_JOBS`.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from tools.parity.checkpoints import Tensors
from tools.parity.fuzz.truth import choose_scheduler, ours_noise
from tools.parity.known.checkpoints import KnownCheckpoint
from tools.parity.known.ensemble_case import (
    BASE,
    GUIDANCE,
    NEGATIVE,
    OTHER_JOBS,
    PROMPT,
    REFINER,
    SCHEDULERS,
    SIDE,
    SPLIT,
    STEPS,
)
from tools.parity.known.truth import weight_shapes
from tools.parity.known.write import init_image, write_configs, write_weights


@torch.no_grad()
def ensemble_answers() -> Tensors:
    """Return the tensors."""
    with tempfile.TemporaryDirectory() as folder:
        base = _pipeline(Path(folder, "base"), BASE)
        refiner = _pipeline(Path(folder, "refiner"), REFINER)
    answers: Tensors = {}
    own = base.scheduler
    for name in SCHEDULERS:
        for pipeline in (base, refiner):
            pipeline.scheduler = own  # each starts from the file's options, not from the last one's
            choose_scheduler(pipeline, name)
        latents = _run(base, height=SIDE, width=SIDE, denoising_end=SPLIT)
        answers[f"{name}|base"] = latents
        answers[f"{name}|refined"] = _run(refiner, image=latents, denoising_start=SPLIT)
        if name == "euler":
            answers |= _other_answers(refiner, latents)
        print(name, flush=True)
    return answers


def _other_answers(refiner: Any, latents: torch.Tensor) -> Tensors:
    image = _run(refiner, "np", image=latents, denoising_start=SPLIT)
    levels = torch.from_numpy((image * 255).round().astype(np.uint8)).contiguous()
    starts = {"middle": latents, "noised image": Image.fromarray(init_image(SIDE))}
    answers = {
        f"euler|{name}": _run(refiner, image=starts[name], **job)
        for name, job in OTHER_JOBS.items()
    }
    return {"euler|image": levels, **answers}


def _pipeline(folder: Path, checkpoint: KnownCheckpoint) -> Any:
    write_configs(folder, checkpoint)
    for network, shapes in weight_shapes(checkpoint).items():
        write_weights(folder, checkpoint, network, shapes)
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _run(pipeline: Any, output_type: str = "latent", **parameters: Any) -> Any:
    with ours_noise():
        images = pipeline(
            PROMPT,
            negative_prompt=NEGATIVE,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            output_type=output_type,
            **parameters,
        ).images
    return images.contiguous() if output_type == "latent" else images
