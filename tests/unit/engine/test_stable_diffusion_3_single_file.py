"""A file with all parts of Stable Diffusion 3 makes the image that diffusers makes of it, or is
refused. T5 may be left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.families.registry import base_of, read_configs
from imagefleet.worker.engine.options.model_options import ModelOptions
from tests.unit.engine.flow_family import STABLE_DIFFUSION_3
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import stored_shapes
from tools.parity.flow.stable_diffusion_3_case import write_configs
from tools.parity.flow.stable_diffusion_3_single_file import SINGLE_FILES, write_single_file

Tensors = dict[str, Any]
PREFIX: Final = "model.diffusion_model."
SHAPE: Final = STABLE_DIFFUSION_3.shape
WITHOUT_T5: Final = ModelOptions(text_encoder_3=False)


def _write(folder: Path, name: str) -> Path:
    file = SINGLE_FILES[name]
    write_configs(folder / "shapes", file.variant)
    networks = read_configs(CheckpointFiles(folder / "shapes")).networks()
    shapes = {name: stored_shapes(each) for name, each in networks.items()}
    return write_single_file(folder, file, shapes)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("single"), "file of 3.5 medium")


def test_a_file_with_all_parts_makes_the_image_of_diffusers(file: Path) -> None:
    """It has dual attention and norms of queries and keys."""
    oracle = FlowOracle.read(file, SHAPE)
    STABLE_DIFFUSION_3.check_first_image(oracle, "file of 3.5 medium")
    projection = oracle.weights.text[1]["text_projection"]["kernel"]
    np.testing.assert_array_equal(np.asarray(projection), np.eye(len(projection)))


def test_a_file_without_t5_makes_the_image_of_diffusers_where_t5_is_left_out(
    tmp_path: Path,
) -> None:
    name = "file of 3 medium without T5"
    file = _write(tmp_path, name)
    with pytest.raises(CheckpointError, match=r"set IMAGEFLEET_TEXT_ENCODER_3=false to leave it"):
        FlowOracle.read(file, SHAPE)
    oracle = FlowOracle.read(file, SHAPE, WITHOUT_T5)
    STABLE_DIFFUSION_3.check_first_image(oracle, name)


def test_t5_in_a_file_may_be_left_out(file: Path) -> None:
    assert len(FlowOracle.read(file, SHAPE, WITHOUT_T5).weights.text) == 2


def _changed(file: Path, folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """Write the file with other tensors, beside the same configs."""
    (folder / "model").symlink_to(file.with_suffix(""))
    save_file(change(load_file(file)), folder / "model.safetensors")
    return folder / "model.safetensors"


def _without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        key: value for key, value in tensors.items() if not key.startswith(parts)
    }


def _transformer_alone(tensors: Tensors) -> Tensors:
    return {
        key.removeprefix(PREFIX): value for key, value in tensors.items() if key.startswith(PREFIX)
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _without("text_encoders."),
            "has no text_encoder, text_encoder_2, text_encoder_3: it is a part of a model; give a",
        ),
        (
            _transformer_alone,
            "has no text_encoder, text_encoder_2, text_encoder_3, transformer, vae: it is a part",
        ),
        (
            lambda tensors: {**tensors, f"{PREFIX}scaled_fp8": np.zeros(2, np.float32)},
            "looks like a model in fp8 whose weights have scales",
        ),
        (
            lambda tensors: {**tensors, f"{PREFIX}joint_blocks.3.x_block.mlp.fc1.bias": np.ones(2)},
            "do not name, the first .*joint_blocks.3.* take the file of the same model",
        ),
        (_without(f"{PREFIX}joint_blocks.1.x_block.attn2."), "transformer_blocks.1.attn2"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    file: Path, tmp_path: Path, change: Callable[[Tensors], Tensors], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(_changed(file, tmp_path, change), SHAPE)


def test_a_t5_of_8_bits_without_scales_is_read(file: Path, tmp_path: Path) -> None:
    def rounded(tensors: Tensors) -> Tensors:
        return {
            key: value.astype(ml_dtypes.float8_e4m3fn) if ".t5xxl." in key else value
            for key, value in tensors.items()
        }

    whole, ours = (
        FlowOracle.read(each, SHAPE).weights.text[0]["shared"]["embedding"]
        for each in (file, _changed(file, tmp_path, rounded))
    )
    expected = np.asarray(whole).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(ours), expected)


@pytest.mark.parametrize(
    ("width", "positions", "blocks", "base"),
    [
        (1536, 192, 24, "stable-diffusion-3-medium-diffusers"),
        (1536, 384, 24, "stable-diffusion-3.5-medium"),
        (2432, 192, 38, "stable-diffusion-3.5-large"),
        (1536, 96, 24, None),
        (2432, 192, 30, None),
    ],
)
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_the_base_of_a_file_is_that_of_diffusers(
    width: int, positions: int, blocks: int, base: str | None, prefix: str
) -> None:
    shapes = {
        "joint_blocks.0.context_block.adaLN_modulation.1.bias": (6 * width,),
        f"joint_blocks.{blocks - 1}.x_block.mlp.fc1.weight": (4 * width, width),
        "pos_embed": (1, positions**2, width),
    }
    found = base_of({prefix + key: shape for key, shape in shapes.items()})
    assert (found and found[1]) == (base and f"stabilityai/{base}")
