"""PyTorch's results for a checkpoint: inputs and outputs of every part.

Input: a pipeline. Output: named tensors.
"""

from collections.abc import Callable
from typing import Any

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
"""The tests use the same prompts."""


@torch.no_grad()
def expected(pipeline: StableDiffusionPipeline) -> Tensors:
    """Return inputs and outputs of every network and UNet block, and whole images."""
    tokens = tokenize(pipeline.tokenizer)
    text = pipeline.text_encoder(tokens)[0]
    tensors = {"tokens": tokens[:, None].int(), "text": text}
    tensors |= run_unet(pipeline.unet, text[:2])
    latents = tensors["unet.latents"]
    tensors |= run_vae(pipeline.vae, latents)
    config = dict(pipeline.scheduler.config)
    config.pop("_use_default_values")  # with it, from_config would drop values of the file
    for name, scheduler in SAMPLERS.items():
        pipeline.scheduler = scheduler.from_config(config)
        tensors[f"pictures.{name}"] = generate(pipeline, latents)
    return {key: tensor.clone().contiguous() for key, tensor in tensors.items()}


def tokenize(tokenizer: CLIPTokenizer) -> torch.Tensor:
    return tokenizer(
        PROMPTS, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    ).input_ids


def run_unet(unet: UNet2DConditionModel, text: torch.Tensor, **added: object) -> Tensors:
    """Call the UNet; return inputs and outputs of it and of each of its blocks."""
    latents = torch.randn(2, 4, SIZE, SIZE, generator=torch.Generator().manual_seed(7))
    times = torch.tensor([1.0, 981.0])
    tensors = {"unet.latents": latents, "unet.times": times}
    hooks = [
        block.register_forward_hook(block_recorder(tensors, name), with_kwargs=True)
        for name, block in unet.named_modules()
        if name == "mid_block" or (name.count(".") == 1 and "_blocks." in name)
    ]
    tensors["unet.out"] = unet(latents, times, text, **added).sample
    for hook in hooks:
        hook.remove()
    return tensors


def run_vae(vae: AutoencoderKL, latents: torch.Tensor) -> Tensors:
    """Call the decoder and the encoder; return their inputs and outputs."""
    generator = torch.Generator().manual_seed(8)
    pixels = torch.randn(2, 3, 4 * SIZE, 4 * SIZE, generator=generator).clamp(-1, 1)
    moments = vae.encode(pixels).latent_dist
    return {
        "vae.pixels": vae.decode(latents).sample,
        "vae.in": pixels,
        "vae.mean": moments.mean,
        "vae.logvar": moments.logvar,
    }


def block_recorder(tensors: Tensors, name: str) -> Callable[..., None]:
    """Return a forward hook that stores inputs and outputs of a block in `tensors`."""

    def record(_module: object, _args: object, kwargs: dict[str, Any], out: object) -> None:
        tensors[f"{name}.time"] = kwargs["temb"]
        tensors[f"{name}.x"] = kwargs["hidden_states"]
        for index, skip in enumerate(kwargs.get("res_hidden_states_tuple") or ()):
            tensors[f"{name}.skip.{index}"] = skip
        outputs = out[1] if isinstance(out, tuple) else (out,)
        for index, tensor in enumerate(outputs):
            tensors[f"{name}.out.{index}"] = tensor

    def record_mid_block(
        _module: object, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> None:
        # diffusers passes these two by position to this block only.
        record(_module, (), {"hidden_states": args[0], "temb": args[1], **kwargs}, out)

    return record_mid_block if name == "mid_block" else record


def generate(
    pipeline: DiffusionPipeline,
    latents: torch.Tensor,
    negatives: list[str] | None = NEGATIVES,
    **options: object,
) -> torch.Tensor:
    """Return uint8 images `[2, H, W, 3]` of 6 steps at guidance 3, as a pipeline saves them."""
    images = pipeline(
        PROMPTS[:2],
        negative_prompt=negatives,
        num_inference_steps=6,
        guidance_scale=3.0,
        latents=latents.clone(),
        output_type="np",
        **options,
    ).images
    return torch.from_numpy((images * 255).round().astype(np.uint8))
