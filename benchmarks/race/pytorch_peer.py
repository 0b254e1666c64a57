"""The peer with PyTorch diffusers: the pipeline of the checkpoint, with one thread per core."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from diffusers import DiffusionPipeline
from peer import RaceConfig, serve


def main() -> None:
    config = RaceConfig.from_argument()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    pipeline = DiffusionPipeline.from_pretrained(config.checkpoint, torch_dtype=torch.float32)
    size = {"height": config.side, "width": config.side} if config.side else {}
    pipeline.set_progress_bar_config(disable=True)
    latents = torch.from_numpy(config.latents().transpose(0, 3, 1, 2).copy())

    def generate(steps: Sequence[int]) -> Any:
        [count] = set(steps)
        images = pipeline(
            prompt=config.prompts(),
            **size,
            num_inference_steps=count,
            guidance_scale=config.guidance,
            latents=latents,
            output_type="np",
        ).images
        return (images * 255).round().astype("uint8")

    serve(generate)


if __name__ == "__main__":
    main()
