"""What diffusers makes of pictures to start from, with and without a mask.

Goes in: a checkpoint folder written before. Comes out: the inputs, the noise, and the pictures.
"""

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from diffusers import AutoPipelineForImage2Image, AutoPipelineForInpainting
from diffusers.models.autoencoders import vae
from diffusers.pipelines.stable_diffusion import (
    pipeline_stable_diffusion_img2img,
    pipeline_stable_diffusion_inpaint,
)
from diffusers.pipelines.stable_diffusion_xl import (
    pipeline_stable_diffusion_xl_img2img,
    pipeline_stable_diffusion_xl_inpaint,
)
from PIL import Image

from tools.parity.answers import PROMPTS
from tools.parity.checkpoints import SIZE, Tensors
from tools.parity.samplers import SAMPLERS

STEPS = 10
STRENGTHS = {"img2img": (0.55, 1.0), "inpaint": (0.55, 1.0)}
PIPELINES = {"img2img": AutoPipelineForImage2Image, "inpaint": AutoPipelineForInpainting}
DRAWING = (
    pipeline_stable_diffusion_img2img,
    pipeline_stable_diffusion_inpaint,
    pipeline_stable_diffusion_xl_img2img,
    pipeline_stable_diffusion_xl_inpaint,
)
NEGATIVES = ["red", "blue"]
"""Words for both: diffusers' SDXL has no zeros for one that says nothing among others that do."""


def edits(folder: Path) -> Tensors:
    """`img2img|sampler|strength` and `inpaint|…` to uint8 pictures `[2, H, W, 3]`."""
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(11)
    side = 4 * SIZE
    coarse = torch.rand(2, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    given: Tensors = {
        "pixels": (smooth.clamp(0, 1) * 255).round().byte().movedim(1, -1).contiguous(),
        "encoding": torch.randn(2, 4, SIZE, SIZE, generator=generator),
        "noise": torch.randn(2, 4, SIZE, SIZE, generator=generator),
    }
    # A mask that does not follow the latents' squares.
    given["repaint"] = torch.zeros(side, side, dtype=torch.bool)
    given["repaint"][5:23, 9:30] = True
    found = dict(given)
    for kind, strengths in STRENGTHS.items():
        for name in SAMPLERS:
            for strength in strengths:
                found[f"{kind}|{name}|{strength}"] = painted(folder, kind, name, strength, given)
    return found


@torch.no_grad()
def painted(folder: Path, kind: str, name: str, strength: float, given: Tensors) -> torch.Tensor:
    """Two pictures, with the noise of `given` in place of what diffusers would draw."""
    pipeline = PIPELINES[kind].from_pretrained(folder, torch_dtype=torch.float32)
    config = dict(pipeline.scheduler.config) | {"clip_sample": False, "skip_prk_steps": True}
    config.pop("_use_default_values", None)
    pipeline.scheduler = SAMPLERS[name].from_config(config)
    pipeline.set_progress_bar_config(disable=True)
    extra: dict[str, Any] = {}
    if kind == "inpaint":
        extra["mask_image"] = Image.fromarray(given["repaint"].numpy().astype(np.uint8) * 255)
    drawn = {vae: given["encoding"]} | dict.fromkeys(DRAWING, given["noise"])
    with ExitStack() as patches:
        for module, noise in drawn.items():
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, noise=noise, **__: noise.clone())
            )
        pictures = pipeline(
            PROMPTS[:2],
            image=[Image.fromarray(pixels.numpy()) for pixels in given["pixels"]],
            negative_prompt=NEGATIVES,
            num_inference_steps=STEPS,
            guidance_scale=3.0,
            strength=strength,
            output_type="np",
            **extra,
        ).images
    return torch.from_numpy((pictures * 255).round().astype(np.uint8)).contiguous()
