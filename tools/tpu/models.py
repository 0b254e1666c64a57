"""Read the configs of published models, for programs that need no weights."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.families.flux1.model import Flux1
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.families.stable_diffusion.family import STABLE_DIFFUSION
from imagefleet.worker.engine.families.stable_diffusion.model import StableDiffusion
from imagefleet.worker.engine.families.stable_diffusion_3 import configs as stable_diffusion_3
from imagefleet.worker.engine.families.stable_diffusion_3.model import StableDiffusion3
from imagefleet.worker.engine.families.z_image.configs import TEXT_LENGTH
from tools.parity.flow import (
    flux1_case,
    flux2_klein_case,
    stable_diffusion_3_case,
    z_image_case,
)
from tools.parity.flow.checkpoint import write_files
from tools.parity.flow.published import FLOW_MODELS
from tools.parity.published import PUBLISHED

SHAPES: Final[Mapping[str, Shape]] = {
    "sd14": Shape(height=512, width=512),
    "sd21": Shape(height=768, width=768),
    "sdxl": Shape(height=1024, width=1024),
}
"""The shape at which each Stable Diffusion is usually run."""
_FLOW_SHAPE: Final = Shape(height=1024, width=1024)
_FLOW_FILES: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "flux1": (flux1_case.INDEX, flux1_case.SCHEDULER),
    "flux2": ({**flux2_klein_case.INDEX, "is_distilled": True}, flux2_klein_case.SCHEDULER),
    "sd3": (stable_diffusion_3_case.INDEX, stable_diffusion_3_case.SCHEDULER),
    "sd3.5": (stable_diffusion_3_case.INDEX, stable_diffusion_3_case.SCHEDULER),
    "z": (z_image_case.INDEX, z_image_case.STATIC),
}
"""By the beginning of a model's name: its model_index.json and its scheduler."""
STEPS: Final[Mapping[str, tuple[int, ...]]] = {
    "z_image": (8,),
    "flux2_klein_4b": (4,),
    "flux2_klein_9b": (4,),
    "flux1_schnell": (4,),
    "flux1_dev": (28,),
    "sd3_medium": (28,),
    "sd3.5_medium": (40,),
    "sd3.5_large": (28,),
}
"""The steps at which flow models are usually run. Z-Image is Turbo, which has no guidance then."""

_LIBRARIES: Final = {
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
}
_TOKENIZER: Final = ["transformers", "CLIPTokenizer"]


BLOCKS: Final[Mapping[str, Mapping[str, int]]] = {
    "z_image": {"n_layers": 30},
    "flux2_klein_4b": {"num_layers": 5, "num_single_layers": 20},
    "flux2_klein_9b": {"num_layers": 8, "num_single_layers": 24},
    "flux1_schnell": {"num_layers": 19, "num_single_layers": 38},
    "flux1_dev": {"num_layers": 19, "num_single_layers": 38},
    "sd3_medium": {"num_layers": 24},
    "sd3.5_medium": {"dual_attention_layers": 13, "num_layers": 11},
    "sd3.5_large": {"num_layers": 38},
}
"""By flow model: the fields of its transformer's config that count equal blocks. Those with dual
attention come before the other layers."""


def shape_of(name: str) -> Shape:
    """Return the shape at which a published model is usually run."""
    return _FLOW_SHAPE if name in FLOW_MODELS else SHAPES[name]


@cache
def published_model(
    name: str, *, int8_weights: bool = False, blocks: tuple[int, ...] = ()
) -> FamilyModel:
    """Return a published model of any family.

    Args:
        name: Of the model.
        int8_weights: Whether a flow model has integers of 8 bits.
        blocks: The numbers of blocks in the order of `BLOCKS`. Empty: those of the published one.
    """
    if name in PUBLISHED:
        return model_of(name)
    with tempfile.TemporaryDirectory(prefix="configs-") as folder:
        write_flow_configs(Path(folder), name, blocks)
        model = read_configs(CheckpointFiles(Path(folder)))
    return model.with_int8_weights() if int8_weights else model


def write_flow_configs(folder: Path, name: str, blocks: tuple[int, ...] = ()) -> None:
    """Write a folder with the configs of a published flow model, without weights."""
    index, scheduler = _FLOW_FILES[name.split("_")[0]]
    counts: dict[str, Any] = dict(zip(BLOCKS[name], blocks, strict=True)) if blocks else {}
    if dual := counts.get("dual_attention_layers"):
        counts |= {
            "dual_attention_layers": [*range(dual)],
            "num_layers": dual + counts["num_layers"],
        }
    transformer = {**FLOW_MODELS[name]["transformer"], **counts}
    configs = {**FLOW_MODELS[name], "transformer": transformer, "scheduler": scheduler}
    write_files(folder, index, configs)


def token_lengths(model: FamilyModel) -> tuple[int, ...]:
    """Return how many tokens a prompt has for each text encoder."""
    if isinstance(model, StableDiffusion):
        return tuple(each.max_position_embeddings for each in model.configs.text_encoders)
    if isinstance(model, Flux1):
        return model.configs.text_length, model.configs.clip.max_position_embeddings
    if isinstance(model, StableDiffusion3):
        clips = (each.max_position_embeddings for each in model.configs.clips)
        return (*([stable_diffusion_3.TEXT_LENGTH] if model.configs.t5 else []), *clips)
    return (TEXT_LENGTH,)


@cache
def model_of(name: str) -> StableDiffusion:
    """Return a published Stable Diffusion."""
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
