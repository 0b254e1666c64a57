"""Textual inversions in the formats that exist, and what diffusers makes of prompts with them.

Input: the checkpoints of `make_parity_fixtures`. Output: files in the formats of diffusers (one
vector) and of AUTOMATIC1111's web UI (several, and for SDXL those of both encoders), and ids, text
states and images.
"""

from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file, save_file

from tools.parity.checkpoints import Tensors
from tools.parity.inversion_cases import FILES, NEGATIVES, PROMPTS


@torch.no_grad()
def write_inversions(target: Path, checkpoints: Path) -> None:
    """Write the files, and `expected.safetensors`: by `checkpoint|…` the answers."""
    target.mkdir(parents=True)
    generator = torch.Generator().manual_seed(31)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    save_file({"<trained-as>": draw(16)}, target / "diffusers.safetensors")
    save_file({"emb_params": draw(3, 16)}, target / "web_ui.safetensors")
    save_file({"emb_params": draw(2, 16).half()}, target / "half.safetensors")
    save_file({"clip_l": draw(2, 16), "clip_g": draw(2, 24)}, target / "xl.safetensors")
    save_file({"clip_l": draw(1, 16), "clip_g": draw(1, 24)}, target / "xl_one.safetensors")
    expected: Tensors = {}
    for name in FILES:
        for key, tensor in _answers(name, checkpoints / name, target).items():
            expected[f"{name}|{key}"] = tensor.clone().contiguous()
    save_file(expected, target / "expected.safetensors")


def _answers(name: str, checkpoint: Path, folder: Path) -> Tensors:
    """Return `tokens`, `text` and `pooled` of the prompts, and `pictures` of the first two."""
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    for token, file in FILES[name].items():
        _load(pipeline, token, folder / f"{file}.safetensors")
    prompts, negatives = list(PROMPTS[name]), list(NEGATIVES[name])
    states = pipeline.encode_prompt(
        prompts, device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False
    )
    tensors = {"tokens": _tokens(pipeline, prompts), "text": states[0]}
    if len(states) > 2:
        tensors["pooled"] = states[2]
    images = pipeline(
        prompts[:2],
        negative_prompt=negatives,
        num_inference_steps=6,
        guidance_scale=3.0,
        latents=load_file(checkpoint / "expected.safetensors")["unet.latents"].clone(),
        output_type="np",
    ).images
    tensors["pictures"] = torch.from_numpy((images * 255).round()).byte()
    return tensors


def _load(pipeline: Any, token: str, path: Path) -> None:
    """Load a file as diffusers' documentation says, in SDXL each encoder by itself."""
    if not hasattr(pipeline, "text_encoder_2"):
        pipeline.load_textual_inversion(str(path), token=token)
        return
    vectors = load_file(path)
    for key, ending in (("clip_l", ""), ("clip_g", "_2")):
        pipeline.load_textual_inversion(
            vectors[key],
            token=token,
            text_encoder=getattr(pipeline, f"text_encoder{ending}"),
            tokenizer=getattr(pipeline, f"tokenizer{ending}"),
        )


def _tokens(pipeline: Any, prompts: list[str]) -> torch.Tensor:
    """Return the ids, `[prompts, encoders, 77]`."""
    tokenizers = [pipeline.tokenizer, getattr(pipeline, "tokenizer_2", None)]
    ids = [
        each(
            pipeline.maybe_convert_prompt(prompts, each),
            padding="max_length",
            max_length=77,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        for each in tokenizers
        if each is not None
    ]
    return torch.stack(ids, dim=1).int()
