"""Text states and images with `clip_skip`, as diffusers makes them.

Input: the checkpoints of `make_parity_fixtures`. Output: named tensors: for each number of layers
the states of prompt and negative prompt, and images whose prompts skip layers.
"""

from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

from tools.parity.answers import NEGATIVES, PROMPTS, generate
from tools.parity.checkpoints import Tensors
from tools.parity.text_model import restore_text_model


@torch.no_grad()
def clip_skips(folder: Path) -> Tensors:
    """Return `text.N`, `negative.N`, of SDXL `pooled.N`, and `pictures.N` of the layers skipped."""
    restore_text_model()
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    latents = load_file(folder / "expected.safetensors")["unet.latents"]
    layers = pipeline.text_encoder.config.num_hidden_layers
    is_xl = hasattr(pipeline, "text_encoder_2")
    tensors: Tensors = {}
    for skip in range(1, layers + (not is_xl)):
        names = ("text", "negative", "pooled", "negative_pooled")
        negatives = ["red", "blue"] if is_xl else NEGATIVES
        states = pipeline.encode_prompt(
            PROMPTS[:2],
            device="cpu",
            num_images_per_prompt=1,
            do_classifier_free_guidance=True,
            negative_prompt=negatives,
            clip_skip=skip,
        )
        for name, state in zip(names, states, strict=False):
            tensors[f"{name}.{skip}"] = state
        tensors[f"pictures.{skip}"] = generate(pipeline, latents, negatives, clip_skip=skip)
    return {key: tensor.clone().contiguous() for key, tensor in tensors.items()}
