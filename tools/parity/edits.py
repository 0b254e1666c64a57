"""diffusers' results for image-to-image and inpainting.

Input: a checkpoint folder. Output: the inputs, the noise and the resulting images.
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
from tools.parity.samplers import ALL_SAMPLERS, SAMPLERS

STEPS = 10
STRENGTHS = {"img2img": (0.55, 1.0), "inpaint": (0.55, 1.0)}
MORE_INPAINTED = ("deis", "dpmsolver++_singlestep", "heun", "kdpm2", "lms", "unipc")
"""Other schedulers without noise. Each has its own rule for the levels of the kept area."""
PIPELINES = {"img2img": AutoPipelineForImage2Image, "inpaint": AutoPipelineForInpainting}
MODULES_WITH_NOISE = (
    pipeline_stable_diffusion_img2img,
    pipeline_stable_diffusion_inpaint,
    pipeline_stable_diffusion_xl_img2img,
    pipeline_stable_diffusion_xl_inpaint,
)
NEGATIVES = ["red", "blue"]
"""Neither is empty: diffusers' SDXL does not zero one empty negative prompt among others."""


def edits(folder: Path) -> Tensors:
    """Return uint8 images `[2, H, W, 3]` by `img2img|scheduler|strength` and `inpaint|…`."""
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(11)
    side = 4 * SIZE
    coarse = torch.rand(2, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    inputs: Tensors = {
        "pixels": (smooth.clamp(0, 1) * 255).round().byte().movedim(1, -1).contiguous(),
        "encoding": torch.randn(2, 4, SIZE, SIZE, generator=generator),
        "noise": torch.randn(2, 4, SIZE, SIZE, generator=generator),
    }
    # The edges of this mask are not aligned with the 4x4 pixels of a latent.
    inputs["repaint"] = torch.zeros(side, side, dtype=torch.bool)
    inputs["repaint"][5:23, 9:30] = True
    tensors = dict(inputs)
    for kind, strengths in STRENGTHS.items():
        for name in SAMPLERS:
            for strength in strengths:
                key = f"{kind}|{name}|{strength}"
                tensors[key] = generate_edit(folder, kind, name, strength, inputs)
    for name in MORE_INPAINTED:
        tensors[f"inpaint|{name}|0.55"] = generate_edit(folder, "inpaint", name, 0.55, inputs)
    return tensors


@torch.no_grad()
def generate_edit(
    folder: Path, kind: str, name: str, strength: float, inputs: Tensors
) -> torch.Tensor:
    """Return two images, made with the noise of `inputs` instead of random noise."""
    pipeline = PIPELINES[kind].from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.scheduler = ALL_SAMPLERS[name].from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    extra: dict[str, Any] = {}
    if kind == "inpaint":
        extra["mask_image"] = Image.fromarray(inputs["repaint"].numpy().astype(np.uint8) * 255)
    noises = {vae: inputs["encoding"]} | dict.fromkeys(MODULES_WITH_NOISE, inputs["noise"])
    with ExitStack() as patches:
        for module, noise in noises.items():
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, noise=noise, **__: noise.clone())
            )
        images = pipeline(
            PROMPTS[:2],
            image=[Image.fromarray(pixels.numpy()) for pixels in inputs["pixels"]],
            negative_prompt=NEGATIVES,
            num_inference_steps=STEPS,
            guidance_scale=3.0,
            strength=strength,
            output_type="np",
            **extra,
        ).images
    return torch.from_numpy((images * 255).round().astype(np.uint8)).contiguous()
