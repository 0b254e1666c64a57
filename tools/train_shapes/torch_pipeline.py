"""The reference pipeline: PyTorch diffusers with the checkpoint, and no code of the engine.

Input: prompts and seeds. Output: images.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import DiffusionPipeline

from tools.train_shapes.scenes import SIDE, ImageArray


class TorchPipeline:
    """The pipeline that model_index.json names, in float32 on the CPU."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self._pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
        self._defaults: dict[str, float] = json.loads((folder / "imagefleet.json").read_text())
        self._pipeline.set_progress_bar_config(disable=True)

    def draw(
        self,
        prompts: list[str],
        *,
        first_seed: int,
        guidance: float | None = None,
        steps: int | None = None,
        negative: str = "",
    ) -> list[ImageArray]:
        """Generate one image per prompt, uint8 (64, 64, 3). Seeds count up from `first_seed`."""
        images = self._pipeline(
            list(prompts),  # pipelines of Z-Image write their chat into the list
            negative_prompt=[negative] * len(prompts),
            guidance_scale=self._defaults["guidance_scale"] if guidance is None else guidance,
            num_inference_steps=steps or int(self._defaults["num_inference_steps"]),
            generator=[
                torch.Generator().manual_seed(first_seed + index) for index in range(len(prompts))
            ],
            height=SIDE,
            width=SIDE,
            output_type="np",
        ).images
        return list(np.rint(images * 255).astype(np.uint8))
