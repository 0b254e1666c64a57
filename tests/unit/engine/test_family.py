"""The parts of a checkpoint must be of one family and fit each other."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.build import load_networks
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.load import load_engine
from imagefleet.worker.engine.mesh import Placement
from tests.unit.engine.parity import FOLDER


@pytest.fixture
def xl(tmp_path: Path) -> Path:
    """A checkpoint of SDXL that this test may break."""
    return Path(shutil.copytree(FOLDER / "xl", tmp_path / "xl"))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("model_index.json", {"text_encoder_2": [None, None]}, "without its text_encoder_2"),
        ("model_index.json", {"text_encoder": [None, None]}, "without its text_encoder$"),
        ("model_index.json", {"_class_name": "StableDiffusionPipeline"}, "cross_attention_dim"),
        ("unet/config.json", {"addition_embed_type": None}, "pooled text, .* are None and 12"),
        (
            "unet/config.json",
            {"projection_class_embeddings_input_dim": 61},
            "UNet pooled text, text projection_dim are 13 and 12",
        ),
        (
            "unet/config.json",
            {"projection_class_embeddings_input_dim": 48},
            "projection_class_embeddings_input_dim=48 has no room for 6 x",
        ),
        (
            "text_encoder_2/config.json",
            {"architectures": ["CLIPTextModel"]},
            "UNet pooled text, text projection_dim are 12 and None",
        ),
        ("text_encoder_2/config.json", {"hidden_size": 32}, "cross_attention_dim, .* 40 and 48"),
        (
            "text_encoder_2/config.json",
            {"max_position_embeddings": 64},
            "max_position_embeddings are 64 and 77",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_numbers(
    xl: Path, file: str, change: dict[str, Any], said: str
) -> None:
    path = xl / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=said):
        Configs.read(xl)


@pytest.mark.parametrize("prefix", ["text_model.", ""])
def test_the_second_encoder_s_weights_may_have_a_prefix(xl: Path, prefix: str) -> None:
    """Those of stabilityai/stable-diffusion-xl-base-1.0 have one, and a buffer of positions."""
    file = xl / "text_encoder_2" / "model.safetensors"
    spelt: dict[str, NDArray[Any]] = {
        key if key.startswith("text_proj") else prefix + key.removeprefix("text_model."): tensor
        for key, tensor in load_file(file).items()
    }
    save_file(spelt | {f"{prefix}embeddings.position_ids": np.arange(77)[None]}, file)
    load_networks(xl, Configs.read(xl), Placement.of(1), np.dtype(np.float32))


def test_a_family_announces_its_own_guidance(cache_dir: Path) -> None:
    """diffusers': 7.5 and, of SDXL, 5."""
    for name, guidance in (("newer", 7.5), ("xl", 5.0)):
        info = load_engine(str(FOLDER / name), cache_dir=cache_dir).info
        assert info.default_guidance_scale == guidance
