"""Make images of the second trained model with PyTorch diffusers.

Input: its checkpoint. Output: a file with the noise that the images start from, and the images.
"""

from pathlib import Path

import numpy as np
import torch
from diffusers import ZImagePipeline
from safetensors.torch import save_file

from tools.parity.shapes_dit_case import GUIDANCE, PROMPTS, STEPS

MODEL = Path("models/shapes_dit/imagefleet_shapes_dit")


def write_shapes_dit(target: Path) -> None:
    """Write `noise [n, 4, 16, 16]` and `images`, uint8 `[n, 64, 64, 3]`."""
    pipeline = ZImagePipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.randn(len(PROMPTS), 4, 16, 16, generator=torch.Generator().manual_seed(3))
    images = pipeline(
        list(PROMPTS),  # the pipeline writes its chat into the list
        latents=noise.clone(),
        height=64,
        width=64,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        output_type="np",
    ).images
    pixels = torch.from_numpy(np.ascontiguousarray(np.rint(images * 255), np.uint8))
    save_file({"noise": noise, "images": pixels}, target)
