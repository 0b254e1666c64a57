"""Images with `guidance_rescale`, as diffusers makes them.

Input: the checkpoints of `make_parity_fixtures`. Output: named tensors, one for each share in
`SHARES`.
"""

from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

from tools.parity.answers import NEGATIVES, generate
from tools.parity.checkpoints import Tensors

SHARES = (0.3, 1.0)


@torch.no_grad()
def guidance_rescales(folder: Path) -> Tensors:
    """Return `images.SHARE`, uint8 `[2, h, w, 3]`."""
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    latents = load_file(folder / "expected.safetensors")["unet.latents"]
    negatives = ["red", "blue"] if hasattr(pipeline, "text_encoder_2") else NEGATIVES
    return {
        f"images.{share}": generate(
            pipeline, latents, negatives, guidance_rescale=share
        ).contiguous()
        for share in SHARES
    }
