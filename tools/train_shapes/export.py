"""Export the three networks as a Stable Diffusion checkpoint folder.

The folder has fp16 safetensors, and `StableDiffusionPipeline.from_pretrained` opens it. The model
card beside the weights is written by hand.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from tools.train_shapes.captions import vocabulary
from tools.train_shapes.networks import build_scheduler
from tools.train_shapes.tokenizer import write_tokenizer

DEFAULTS = {"num_inference_steps": 20, "guidance_scale": 3.0}
"""What a worker uses if a job does not say. These got the best scores from the judge."""


def export_checkpoint(
    folder: Path,
    *,
    autoencoder: AutoencoderKL,
    text_encoder: CLIPTextModel,
    unet: UNet2DConditionModel,
) -> None:
    """Replace the checkpoint in `folder`, and keep the other files there."""
    with fresh_checkpoint(folder, DEFAULTS) as fresh:
        write_tokenizer(fresh / "tokenizer", vocabulary())
        pipeline = StableDiffusionPipeline(
            vae=autoencoder,
            text_encoder=text_encoder,
            unet=unet,
            tokenizer=CLIPTokenizer.from_pretrained(fresh / "tokenizer"),
            scheduler=build_scheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        half = {name: halved(getattr(pipeline, name)) for name in ("vae", "text_encoder", "unet")}
        pipeline.register_modules(**half)
        pipeline.save_pretrained(fresh, safe_serialization=True)
        # save_pretrained keeps only the fast tokenizer's file. Readers of CLIP's files need both.
        write_tokenizer(fresh / "tokenizer", vocabulary())


@contextmanager
def fresh_checkpoint(folder: Path, defaults: Mapping[str, float]) -> Iterator[Path]:
    """Yield a folder for the files of a checkpoint, which then replace those of the same names in
    `folder`. `defaults` are what a worker uses if a job does not say."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch)
        yield fresh
        (fresh / "imagefleet.json").write_text(
            json.dumps(defaults, indent=2) + "\n", encoding="utf-8"
        )
        _replace_parts(fresh, folder)


def halved(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy in float16 on the host."""
    return copy.deepcopy(module).to("cpu", torch.float16)


def _replace_parts(fresh: Path, folder: Path) -> None:
    """Move the files of `fresh` into `folder` in place of those of the same names."""
    folder.mkdir(exist_ok=True)
    for part in sorted(fresh.iterdir()):
        old = folder / part.name
        if old.is_dir():
            shutil.rmtree(old)
        shutil.move(part, old)
