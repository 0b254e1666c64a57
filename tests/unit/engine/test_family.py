"""The parts of a checkpoint must belong to one pipeline and match each other."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.default_strengths import DefaultStrengths
from imagefleet.worker.engine.checkpoint.checkpoint_files import (
    CheckpointFiles,
    read_json,
)
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import PIPELINES
from imagefleet.worker.engine.loading.find_checkpoint import network_folders
from imagefleet.worker.engine.loading.load_engine import load_engine
from tests.unit.engine.parity import FOLDER, load_in_float32


@pytest.fixture
def xl(tmp_path: Path) -> Path:
    """A copy of an SDXL checkpoint, which a test may change."""
    return Path(shutil.copytree(FOLDER / "xl", tmp_path / "xl"))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"text_encoder_2": [None, None]}, "text_encoder_2 is missing"),
        ("model_index.json", {"text_encoder": [None, None]}, "text_encoder is missing"),
        ("model_index.json", {"_class_name": "StableDiffusionPipeline"}, "cross_attention_dim"),
        ("unet/config.json", {"addition_embed_type": None}, "pooled text, .* are None and 12"),
        (
            "unet/config.json",
            {"projection_class_embeddings_input_dim": 61},
            "UNet pooled text, text projection_dim must be equal but are 13 and 12",
        ),
        (
            "unet/config.json",
            {"projection_class_embeddings_input_dim": 48},
            "projection_class_embeddings_input_dim=48 must be more than 6 x",
        ),
        (
            "model_index.json",
            {"text_encoder_2": ["transformers", "CLIPTextModel"]},
            "UNet pooled text, text projection_dim must be equal but are 12 and None",
        ),
        ("text_encoder_2/config.json", {"hidden_size": 32}, "cross_attention_dim, .* 40 and 48"),
    ],
)
def test_the_error_names_parts_that_do_not_match_with_their_numbers(
    xl: Path, file: str, change: dict[str, Any], message: str
) -> None:
    path = xl / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        Configs.read(CheckpointFiles(xl))


@pytest.mark.parametrize("prefix", ["text_model.", ""])
def test_the_weights_of_the_second_text_encoder_may_have_a_prefix(xl: Path, prefix: str) -> None:
    """In stabilityai/stable-diffusion-xl-base-1.0 they have one, and there is a position buffer."""
    file = xl / "text_encoder_2" / "model.safetensors"
    renamed: dict[str, NDArray[Any]] = {
        key if key.startswith("text_proj") else prefix + key.removeprefix("text_model."): tensor
        for key, tensor in load_file(file).items()
    }
    save_file(renamed | {f"{prefix}embeddings.position_ids": np.arange(77)[None]}, file)
    load_in_float32(CheckpointFiles(xl))


@pytest.mark.parametrize("entry", [5, {"a": 1}, "UNet2DConditionModel", ["diffusers"]])
def test_the_error_names_a_part_whose_entry_is_no_library_and_class(
    xl: Path, entry: object
) -> None:
    index = xl / "model_index.json"
    index.write_text(json.dumps(read_json(index) | {"unet": entry}))
    assert "unet" in network_folders(read_json(index))
    with pytest.raises(CheckpointError, match=r"unet is .*; this engine runs UNet2DConditionModel"):
        Configs.read(CheckpointFiles(xl))


def test_sdxl_has_no_safety_checker_as_in_diffusers(xl: Path) -> None:
    index = xl / "model_index.json"
    has = {"safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"]}
    index.write_text(json.dumps(json.loads(index.read_text()) | has))
    assert Configs.read(CheckpointFiles(xl)).safety is None


def test_the_default_guidance_is_that_of_the_pipeline_in_diffusers(cache_dir: Path) -> None:
    """It is 7.5 for Stable Diffusion and 5 for SDXL."""
    for name, guidance in (("newer", 7.5), ("xl", 5.0)):
        info = load_engine(str(FOLDER / name), cache_dir=cache_dir).info
        assert info.default_guidance_scale == guidance


@pytest.mark.parametrize(
    ("pipeline", "strengths"),
    [
        ("StableDiffusionPipeline", (0.8, 1.0)),
        ("LatentConsistencyModelPipeline", (0.8, 1.0)),
        ("StableDiffusionInpaintPipeline", (0.8, 1.0)),
        ("StableDiffusionInstructPix2PixPipeline", (None, None)),
        ("StableDiffusionXLPipeline", (0.3, 0.9999)),
        ("StableDiffusionXLImg2ImgPipeline", (0.3, 0.9999)),
        ("StableDiffusionXLInpaintPipeline", (0.3, 0.9999)),
        ("StableDiffusionXLInstructPix2PixPipeline", (None, None)),
    ],
)
def test_the_default_strengths_are_those_of_the_pipelines_in_diffusers(
    pipeline: str, strengths: tuple[float | None, float | None]
) -> None:
    assert PIPELINES[pipeline].image_use.default_strengths == DefaultStrengths(*strengths)
