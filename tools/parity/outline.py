"""Images of the bundled model with a LoRA, as diffusers and PEFT make them without merging it.

Input: the bundled checkpoint and the LoRA of `tools.train_shapes.train_lora`. Output: a file with
the noise that the images start from, and the images. The LoRA has no text encoder, whose LoRA
diffusers 0.42 leaves out with transformers 5.23.
"""

from pathlib import Path

import numpy as np
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import save_file

from tools.parity.outline_case import GUIDANCE, PROMPTS, SCALE, STEPS
from tools.train_shapes.outlines import LORA_FILE

MODEL = Path("worker/bundled/shapes")


def write_outlines(target: Path) -> None:
    """Write `noise [n, 4, 16, 16]` and `images`, uint8 `[n, 64, 64, 3]`."""
    pipeline = StableDiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
    pipeline.load_lora_weights(LORA_FILE.parent, weight_name=LORA_FILE.name, adapter_name="outline")
    pipeline.set_adapters(["outline"], [SCALE])
    noise = torch.randn(len(PROMPTS), 4, 16, 16, generator=torch.Generator().manual_seed(3))
    images = pipeline(
        PROMPTS,
        latents=noise.clone(),
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        output_type="np",
    ).images
    pixels = torch.from_numpy(np.ascontiguousarray(np.rint(images * 255), np.uint8))
    save_file({"noise": noise, "images": pixels}, target)
