"""Read the configs of published models, for programs that need no weights."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.family import STABLE_DIFFUSION
from imagefleet.worker.engine.families.stable_diffusion.model import StableDiffusion
from tools.parity.published import PUBLISHED

SHAPES: Final[Mapping[str, Shape]] = {
    "sd14": Shape(height=512, width=512),
    "sd21": Shape(height=768, width=768),
    "sdxl": Shape(height=1024, width=1024),
}
"""The shape at which each model is usually run."""

_LIBRARIES: Final = {
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
}
_TOKENIZER: Final = ["transformers", "CLIPTokenizer"]


@cache
def model_of(name: str) -> StableDiffusion:
    """Return a published model."""
    with tempfile.TemporaryDirectory(prefix="configs-") as folder:
        write_configs(PUBLISHED[name], Path(folder))
        return STABLE_DIFFUSION.read(CheckpointFiles(Path(folder)))


def write_configs(networks: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write a folder in diffusers format without weights and without tokenizers.

    Args:
        networks: The fields of `config.json`, by network.
        folder: It must be empty.
    """
    is_xl = "text_encoder_2" in networks
    index: dict[str, Any] = {
        "_class_name": f"StableDiffusion{'XL' if is_xl else ''}Pipeline",
        "scheduler": ["diffusers", "PNDMScheduler"],
        "tokenizer": _TOKENIZER,
        **({"tokenizer_2": _TOKENIZER} if is_xl else {}),
        **{name: _LIBRARIES[name] for name in networks},
    }
    files: dict[str, Mapping[str, Any]] = {
        f"{name}/config.json": config for name, config in networks.items()
    }
    if "safety_checker" in networks:
        index["feature_extractor"] = ["transformers", "CLIPImageProcessor"]
        files["feature_extractor/preprocessor_config.json"] = {}
    files["scheduler/scheduler_config.json"] = {
        "_class_name": "PNDMScheduler",
        "beta_schedule": "scaled_linear",
        "skip_prk_steps": True,
    }
    for name, content in (files | {INDEX: index}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
