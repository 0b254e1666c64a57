"""A file with all parts of FLUX.1 makes the image that diffusers makes of it, or is refused."""

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
from tests.unit.engine.flow_family import FLUX1
from tests.unit.engine.flow_parity import FlowOracle
from tests.unit.engine.parity import stored_shapes
from tools.parity.flow.flux1_case import write_configs
from tools.parity.flow.flux1_single_file import write_single_file

Tensors = dict[str, Any]
PREFIX: Final = "model.diffusion_model."


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    write_configs(folder / "shapes")
    networks = read_configs(CheckpointFiles(folder / "shapes")).networks()
    return write_single_file(folder, {name: stored_shapes(each) for name, each in networks.items()})


def test_a_file_with_all_parts_makes_the_image_of_diffusers(file: Path) -> None:
    FLUX1.check_first_image(FlowOracle.read(file, FLUX1.shape), "single file")


def _changed(file: Path, folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """Write the file with other tensors, beside the same configs."""
    (folder / "model").symlink_to(file.with_suffix(""))
    save_file(change(load_file(file)), folder / "model.safetensors")
    return folder / "model.safetensors"


def _in_fp8(tensors: Tensors) -> Tensors:
    return {
        key: value.astype(ml_dtypes.float8_e4m3fn) if key.startswith(PREFIX) else value
        for key, value in tensors.items()
    }


def _transformer_alone(tensors: Tensors) -> Tensors:
    return {
        key.removeprefix(PREFIX): value for key, value in tensors.items() if key.startswith(PREFIX)
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_transformer_alone, "has no text_encoder, text_encoder_2, vae: as files of Black Forest"),
        (
            lambda tensors: {**tensors, f"{PREFIX}scaled_fp8": np.zeros(2, np.float32)},
            "looks like a model in fp8 whose weights have scales",
        ),
        (
            lambda tensors: {**tensors, f"{PREFIX}double_blocks.2.img_mod.lin.bias": np.zeros(2)},
            "do not name, the first .*double_blocks.2.* take the file of the same model",
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(
    file: Path, tmp_path: Path, change: Callable[[Tensors], Tensors], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        FlowOracle.read(_changed(file, tmp_path, change), FLUX1.shape)


def test_weights_of_8_bits_without_scales_are_read(file: Path, tmp_path: Path) -> None:
    rounded = _changed(file, tmp_path, _in_fp8)
    whole, ours = (
        FlowOracle.read(each, FLUX1.shape).weights.denoiser["x_embedder"]["kernel"]
        for each in (file, rounded)
    )
    expected = np.asarray(whole).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(ours), expected)


@pytest.mark.parametrize(
    ("more", "base"),
    [
        ({"guidance_in.in_layer.bias": (1,), "img_in.weight": (8, 64)}, "FLUX.1-dev"),
        ({"guidance_in.in_layer.bias": (1,), "img_in.weight": (8, 384)}, "FLUX.1-Fill-dev"),
        ({"img_in.weight": (8, 64)}, "FLUX.1-schnell"),
        ({"distilled_guidance_layer.in_proj.bias": (1,)}, None),
        ({"single_stream_modulation.lin.weight": (1, 1)}, None),
    ],
)
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_the_base_of_a_file_is_that_of_diffusers(
    more: dict[str, tuple[int, ...]], base: str | None, prefix: str
) -> None:
    shapes = {"double_blocks.0.img_attn.norm.key_norm.scale": (1,), **more}
    found = base_of({prefix + key: shape for key, shape in shapes.items()})
    assert (found and found[1]) == (base and f"black-forest-labs/{base}")
