"""PyTorch diffusers on the course: `StableDiffusionPipeline`, a thread a core."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from diffusers import StableDiffusionPipeline
from peer import PROMPT, Course, serve


def main() -> None:
    course = Course.from_argument()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    pipeline = StableDiffusionPipeline.from_pretrained(
        course.checkpoint, safety_checker=None, torch_dtype=torch.float32
    )
    pipeline.set_progress_bar_config(disable=True)
    latents = torch.from_numpy(course.latents().transpose(0, 3, 1, 2).copy())

    def paint(steps: Sequence[int]) -> Any:
        [count] = set(steps)
        images = pipeline(
            [PROMPT] * course.batch,
            num_inference_steps=count,
            guidance_scale=course.guidance,
            latents=latents,
            output_type="np",
        ).images
        return (images * 255).round().astype("uint8")

    serve(paint)


if __name__ == "__main__":
    main()
