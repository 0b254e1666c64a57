"""What PyTorch makes of a checkpoint: inputs and outputs of every part.

Goes in: a pipeline. Comes out: named tensors.
"""

from collections.abc import Callable

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTokenizer

from tools.parity.checkpoints import SIZE, Tensors
from tools.parity.samplers import SAMPLERS

PROMPTS = ["a red circle on blue", "Zwölf  Bücher, 3 for €5!", ""]
NEGATIVES = ["", "blue"]
"""The tests have the same."""


@torch.no_grad()
def expected(pipeline: StableDiffusionPipeline) -> Tensors:
    """Inputs and outputs of every network, every block of the UNet, and whole pictures."""
    tokens = tokenize(pipeline.tokenizer)
    text = pipeline.text_encoder(tokens)[0]
    found = {"tokens": tokens[:, None].int(), "text": text}
    found |= denoised(pipeline.unet, text[:2])
    latents = found["unet.latents"]
    found |= coded(pipeline.vae, latents)
    config = dict(pipeline.scheduler.config) | {"clip_sample": False, "skip_prk_steps": True}
    config.pop("_use_default_values")  # would make it forget what the file says
    for name, scheduler in SAMPLERS.items():
        pipeline.scheduler = scheduler.from_config(config)
        found[f"pictures.{name}"] = paint(pipeline, latents)
    return {key: tensor.clone().contiguous() for key, tensor in found.items()}


def tokenize(tokenizer: CLIPTokenizer) -> torch.Tensor:
    return tokenizer(
        PROMPTS, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    ).input_ids


def denoised(unet: UNet2DConditionModel, text: torch.Tensor, **added: object) -> Tensors:
    """A call of the UNet, and what went through each of its blocks."""
    latents = torch.randn(2, 4, SIZE, SIZE, generator=torch.Generator().manual_seed(7))
    times = torch.tensor([1.0, 981.0])
    found = {"unet.latents": latents, "unet.times": times}
    hooks = [
        block.register_forward_hook(recorder(found, name), with_kwargs=True)
        for name, block in unet.named_modules()
        if name == "mid_block" or (name.count(".") == 1 and "_blocks." in name)
    ]
    found["unet.out"] = unet(latents, times, text, **added).sample
    for hook in hooks:
        hook.remove()
    return found


def coded(vae: AutoencoderKL, latents: torch.Tensor) -> Tensors:
    """A call of each half of the autoencoder."""
    generator = torch.Generator().manual_seed(8)
    pixels = torch.randn(2, 3, 4 * SIZE, 4 * SIZE, generator=generator).clamp(-1, 1)
    moments = vae.encode(pixels).latent_dist
    return {
        "vae.pixels": vae.decode(latents).sample,
        "vae.in": pixels,
        "vae.mean": moments.mean,
        "vae.logvar": moments.logvar,
    }


def recorder(found: Tensors, name: str) -> Callable[..., None]:
    """Keeps what goes into a block and what comes out."""

    def record(_module: object, _args: object, given: dict, out: object) -> None:
        found[f"{name}.time"] = given["temb"]
        found[f"{name}.x"] = given["hidden_states"]
        for index, skip in enumerate(given.get("res_hidden_states_tuple") or ()):
            found[f"{name}.skip.{index}"] = skip
        outputs = out[1] if isinstance(out, tuple) else (out,)
        for index, tensor in enumerate(outputs):
            found[f"{name}.out.{index}"] = tensor

    def of_mid(_module: object, args: tuple, given: dict, out: object) -> None:
        record(_module, (), {"hidden_states": args[0], "temb": args[1], **given}, out)

    return of_mid if name == "mid_block" else record


def paint(
    pipeline: DiffusionPipeline, latents: torch.Tensor, negatives: list[str] | None = NEGATIVES
) -> torch.Tensor:
    """uint8 `[2, H, W, 3]` after 6 steps at guidance 3, as the pipeline would save them."""
    pictures = pipeline(
        PROMPTS[:2],
        negative_prompt=negatives,
        num_inference_steps=6,
        guidance_scale=3.0,
        latents=latents.clone(),
        output_type="np",
    ).images
    return torch.from_numpy((pictures * 255).round().astype(np.uint8))
