"""Tiny random checkpoints of Stable Diffusion 1 and 2, with the key names of 2022 and with current
ones.

Input: a folder. Output: a diffusers checkpoint there, in half precision, and a pipeline with
exactly the stored weights. Other modules use them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiffusionPipeline,
    PNDMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

Tensors = dict[str, torch.Tensor]

WORDS = ["a</w>", "red</w>", "circle</w>", "on</w>", "blue</w>"]
SIZE = 8
"""Side of the latents. Images are 32x32."""
OF_OTHERS = {"clip_sample": False, "skip_prk_steps": True}
"""Fields of scheduler files that published ones have, also those of classes that do not read them.
"""


def older_unet() -> UNet2DConditionModel:
    """Return a UNet like Stable Diffusion 1.x: convolutional projections, equal heads per level."""
    return UNet2DConditionModel(
        sample_size=SIZE,
        block_out_channels=(16, 24),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
        cross_attention_dim=16,
        attention_head_dim=2,
    )


def newer_unet() -> UNet2DConditionModel:
    """Return a UNet like Stable Diffusion 2, with further options that the older one lacks."""
    return UNet2DConditionModel(
        sample_size=SIZE,
        block_out_channels=(8, 16, 16),
        layers_per_block=(1, 2, 1),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=(1, 2, 4),
        transformer_layers_per_block=(1, 2, 1),
        use_linear_projection=True,
        flip_sin_to_cos=False,
        freq_shift=1,
    )


def pndm_config() -> PNDMScheduler:
    """Return the scheduler of Stable Diffusion 1.4."""
    scheduler = PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    scheduler.register_to_config(**OF_OTHERS)
    return scheduler


def ddim_config() -> DDIMScheduler:
    scheduler = DDIMScheduler(prediction_type="v_prediction", timestep_spacing="trailing")
    scheduler.register_to_config(**OF_OTHERS)
    return scheduler


def write_checkpoint(
    folder: Path,
    unet: UNet2DConditionModel,
    activation: str,
    scheduler: PNDMScheduler | DDIMScheduler,
    pad: str,
    seed: int,
) -> StableDiffusionPipeline:
    """Write a checkpoint; return a pipeline with exactly the stored half-precision weights."""
    tokenizer = make_tokenizer(folder / "tokenizer", pad)
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_act=activation,
        )
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        scaling_factor=0.5,
        sample_size=4 * SIZE,
    )
    generator = torch.Generator().manual_seed(seed)
    half = torch.float16 if seed == 1 else torch.bfloat16
    for network in (text, unet, vae):
        randomise(network, generator, half)
    scale_down_output(unet, half)
    pipeline = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text.eval(),
        unet=unet.eval(),
        tokenizer=tokenizer,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    save(pipeline, folder, half)
    return pipeline


def save(pipeline: DiffusionPipeline, folder: Path, half: torch.dtype) -> None:
    """Save the pipeline with weights in half precision."""
    pipeline.save_pretrained(folder)
    for file in folder.glob("*/*.safetensors"):
        rewrite(file, lambda key, tensor: {key: tensor.to(half)})
    pipeline.set_progress_bar_config(disable=True)


def randomise(network: torch.nn.Module, generator: torch.Generator, half: torch.dtype) -> None:
    """Draw every weight at random.

    New networks have norm weights of one and biases of zero, which would hide swapped weights.
    """
    with torch.no_grad():
        for name, weight in network.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.copy_((0.1 if name.endswith("bias") else 0.2) * noise)
                weight.add_(0 if name.endswith("bias") else 1)
            else:
                weight.copy_(noise * (weight[0].numel() ** -0.5 if weight.ndim > 1 else 1))
            weight.copy_(weight.to(half).float())


def scale_down_output(unet: UNet2DConditionModel, half: torch.dtype) -> None:
    """Divide the output of the UNet by 8.

    A random UNet does not denoise, and with a large output rounding errors grow with each step.
    """
    weight = unet.conv_out.weight.data
    weight.copy_((weight / 8).to(half).float())


def make_tokenizer(folder: Path, pad: str) -> CLIPTokenizer:
    """Write vocab.json and merges.txt of a CLIP byte-level BPE tokenizer with a few words."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    merges = []
    for word in WORDS:
        pieces = [*word.removesuffix("</w>")[:-1], word.removesuffix("</w>")[-1] + "</w>"]
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces = [pieces[0] + pieces[1], *pieces[2:]]
    merges = list(dict.fromkeys(merges))
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(m) for m in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs: Any = merges  # transformers declares strings, and takes pairs
    return CLIPTokenizer(vocab=vocabulary, merges=pairs, model_max_length=77, pad_token=pad)


def rewrite(file: Path, change: Callable[[str, torch.Tensor], Tensors]) -> None:
    """Replace every tensor of a safetensors file by what `change` returns for it."""
    tensors: Tensors = {}
    for key, tensor in load_file(file).items():
        tensors |= change(key, tensor.contiguous())
    save_file(tensors, file)


def rename_like_2022(folder: Path) -> None:
    """Change key names and tokenizer files to those of CompVis/stable-diffusion-v1-4."""
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def rename_vae(key: str, tensor: torch.Tensor) -> Tensors:
        for current_name, old_name in old.items():
            key = key.replace(f"attentions.0.{current_name}", f"attentions.0.{old_name}")
        return {key: tensor}

    rewrite(folder / "vae" / "diffusion_pytorch_model.safetensors", rename_vae)
    text = folder / "text_encoder" / "model.safetensors"
    rewrite(text, lambda key, tensor: {f"text_model.{key.removeprefix('text_model.')}": tensor})
    positions = {"text_model.embeddings.position_ids": torch.arange(77)[None]}
    save_file(load_file(text) | positions, text)
    (folder / "tokenizer" / "tokenizer.json").unlink(missing_ok=True)


def keep_current_tokenizer_files(folder: Path) -> None:
    """Keep only tokenizer.json, as transformers 5 writes it."""
    for name in ("vocab.json", "merges.txt"):
        (folder / "tokenizer" / name).unlink()
