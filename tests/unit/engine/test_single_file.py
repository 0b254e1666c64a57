"""A file in the original format gives each network the tensors that diffusers finds in it."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.weights import weight_entries
from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import base_model
from imagefleet.worker.engine.loading.find_checkpoint import (
    ModelIdentity,
    find_checkpoint,
    open_checkpoint,
)
from imagefleet.worker.engine.loading.load_engine import load_engine
from tests.unit.engine.parity import FOLDER, load_in_float32, read_model
from tools.parity.known.checkpoints import KNOWN
from tools.parity.known.single_file import SINGLE_FILES, content_digest, original_tensors
from tools.parity.known.write import write_configs

ANSWERS: Final[dict[str, dict[str, str]]] = json.loads((FOLDER / "single_files.json").read_text())
SD1: Final = "CompVis/stable-diffusion-v1-4"
_UNET: Final = "model.diffusion_model."


def _write(folder: Path, name: str) -> Path:
    """Write the file, and its configs and tokenizers beside it."""
    file = folder / "model.safetensors"
    write_configs(folder / "model", KNOWN[name])
    networks = read_model(CheckpointFiles(folder / "model")).networks()
    shapes = {
        network: {each.key: each.stored_shapes[0] for each in weight_entries(model)}
        for network, model in networks.items()
    }
    tensors: dict[str, Any] = {**original_tensors(name, shapes)}
    save_file(tensors, file)
    return file


@pytest.mark.parametrize("name", SINGLE_FILES)
def test_each_key_of_diffusers_has_the_tensor_that_diffusers_finds(
    name: str, tmp_path: Path
) -> None:
    file = _write(tmp_path, name)
    files = open_checkpoint(find_checkpoint(str(file)))
    entries = {
        network: weight_entries(model) for network, model in read_model(files).networks().items()
    }
    keys = {network: [entry.key for entry in each] for network, each in entries.items()}
    for network, opened in files.open_weights(list(keys), keys).items():
        found = {}
        for key in keys[network]:
            whole = tuple(slice(None) for _ in opened.shapes[key])
            found[key] = opened.read_slice(key, whole)
            assert found[key].shape == opened.shapes[key]
        assert content_digest(found) == ANSWERS[name][network]
    load_in_float32(files)


def test_weights_are_read_in_slices_of_rows_and_columns(tmp_path: Path) -> None:
    name = "stabilityai/stable-diffusion-xl-base-1.0"
    files = open_checkpoint(_write(tmp_path, name))
    query, projection = "encoder.layers.0.self_attn.k_proj.weight", "text_projection.weight"
    opened = _second_text_encoder(files)
    for key in (query, projection):
        whole = opened.read_slice(key, (slice(None), slice(None)))
        part = opened.read_slice(key, (slice(2, 7), slice(1, 4)))
        np.testing.assert_array_equal(part, whole[2:7, 1:4])


def _second_text_encoder(files: CheckpointFiles) -> Any:
    networks = read_model(files).networks()
    keys = {
        network: [each.key for each in weight_entries(model)] for network, model in networks.items()
    }
    return files.open_weights(list(keys), keys)["text_encoder_2"]


def test_the_engine_loads_a_file_under_its_name(tmp_path: Path, cache_dir: Path) -> None:
    file = _write(tmp_path, SD1)
    engine = load_engine(str(file), devices=1, cache_dir=cache_dir)
    assert engine.info.name == "model"
    assert engine.info.default_scheduler == "pndm"
    assert ModelIdentity.of(str(file), file).source is None
    tensors = load_file(file)
    tensors[f"{_UNET}out.2.bias"] += 1
    save_file(tensors, file)
    changed = load_engine(str(file), devices=1, cache_dir=cache_dir)
    assert changed.info.digest != engine.info.digest


def test_the_error_names_weights_that_are_unread_or_missing(tmp_path: Path) -> None:
    file = _write(tmp_path, SD1)
    tensors = load_file(file)
    for key in ("v_prediction", "edm_other"):
        save_file({**tensors, key: np.zeros(1, np.float32)}, file)
        with pytest.raises(CheckpointError, match=rf"has 1 weights that .* first {key}"):
            _load(file)
    del tensors[f"{_UNET}out.2.bias"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"unet: conv_out\.bias is missing"):
        _load(file)


V_PREDICTION: Final = {"prediction_type": "v_prediction"}
NOOB: Final = {**V_PREDICTION, "rescale_betas_zero_snr": True}
COSXL: Final = {
    **V_PREDICTION,
    "sigma_min": 0.002,
    "sigma_max": 120.0,
    "sigma_data": 1.0,
    "sigma_schedule": "exponential",
}
_BOUNDS: Final = {"edm_vpred.sigma_min": 0.002, "edm_vpred.sigma_max": 120.0}


@pytest.mark.parametrize(
    ("markers", "scheduler", "fields", "refusal"),
    [
        ({"v_pred": None}, "EulerDiscreteScheduler", V_PREDICTION, ""),
        ({"v_pred": None, "ztsnr": None}, "EulerDiscreteScheduler", NOOB, ""),
        (
            *({"v_pred": None}, "EulerDiscreteScheduler", {}),
            "v_pred, so its model needs prediction_type = v_prediction, which the scheduler of",
        ),
        (
            *({"v_pred": None, "ztsnr": None}, "EulerDiscreteScheduler", V_PREDICTION),
            "v_pred, ztsnr, so its model needs rescale_betas_zero_snr = true, which",
        ),
        (
            *({"v_pred": None, "ztsnr": None}, "EulerDiscreteScheduler", {}),
            "prediction_type = v_prediction and rescale_betas_zero_snr = true, which",
        ),
        (_BOUNDS, "EDMEulerScheduler", COSXL, ""),
        (
            *(_BOUNDS, "EDMEulerScheduler", {**COSXL, "sigma_max": 80.0}),
            r"sigma_min, so its model needs sigma_max of an EDMEulerScheduler = 120, which",
        ),
        (
            *(_BOUNDS, "EDMEulerScheduler", {**COSXL, "prediction_type": "epsilon"}),
            "needs prediction_type = v_prediction, which",
        ),
        (
            *(_BOUNDS, "EulerDiscreteScheduler", V_PREDICTION),
            "sigma_max of an EDMEulerScheduler = 120 and sigma_min of an EDMEulerScheduler = 0.002",
        ),
        (
            *({"edm_vpred.sigma_max": [1, 2]}, "EDMEulerScheduler", COSXL),
            r"edm_vpred\.sigma_max has 2 numbers, but it must have one; download it again",
        ),
    ],
)
def test_a_file_that_says_how_its_model_was_trained_needs_such_a_scheduler(
    markers: dict[str, Any], scheduler: str, fields: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    """NoobAI's and CosXL's files have such keys. A marker without a value holds no number."""
    file = _write(tmp_path, SD1)
    tensors: dict[str, Any] = {**load_file(file)}
    for key, value in markers.items():
        tensors[key] = np.array([] if value is None else value, np.float16)
    save_file(tensors, file)
    for name, changes in (
        ("model_index.json", {"scheduler": ["diffusers", scheduler]}),
        ("scheduler/scheduler_config.json", fields),
    ):
        path = tmp_path / "model" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=refusal) if refusal else nullcontext():
        _load(file)


def _load(file: Path) -> None:
    files = open_checkpoint(file)
    load_in_float32(files)


def test_a_file_without_configs_beside_it_needs_those_of_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sd.safetensors"
    tensors = {
        f"{_UNET}input_blocks.0.0.weight": np.zeros((8, 4, 3, 3), np.float32),
        "cond_stage_model.transformer.text_model.final_layer_norm.bias": np.zeros(8, np.float32),
    }
    save_file(tensors, file)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        CheckpointError,
        match=r"needs the configs and tokenizers of stable-diffusion-v1-5/\S+: .* or put them in",
    ):
        open_checkpoint(file)
    save_file({"some.weight": np.zeros(1, np.float32)}, file)
    with pytest.raises(CheckpointError, match="does not have the keys of Stable Diffusion 1, 2 or"):
        open_checkpoint(file)


@pytest.mark.parametrize(
    ("channels", "attention", "others", "base"),
    [
        (
            4,
            768,
            ("cond_stage_model.transformer.x",),
            "stable-diffusion-v1-5/stable-diffusion-v1-5",
        ),
        (4, 1024, (), "stabilityai/stable-diffusion-2-1"),
        (
            *(4, 0),
            ("conditioner.embedders.1.model.ln_final.weight",),
            "stabilityai/stable-diffusion-xl-base-1.0",
        ),
        (
            *(4, 0),
            ("edm_mean", "conditioner.embedders.1.model.ln_final.weight"),
            "playgroundai/playground-v2.5-1024px-aesthetic",
        ),
        (
            *(4, 0),
            ("conditioner.embedders.0.model.ln_final.weight",),
            "stabilityai/stable-diffusion-xl-refiner-1.0",
        ),
        (9, 0, ("conditioner.embedders.0.model.ln_final.weight",), None),
        (
            *(9, 768),
            ("cond_stage_model.transformer.x",),
            "stable-diffusion-v1-5/stable-diffusion-inpainting",
        ),
        (9, 1024, (), "stabilityai/stable-diffusion-2-inpainting"),
        (
            *(9, 0),
            ("conditioner.embedders.1.model.ln_final.weight",),
            "diffusers/stable-diffusion-xl-1.0-inpainting-0.1",
        ),
        (8, 768, ("cond_stage_model.transformer.x",), "timbrooks/instruct-pix2pix"),
        (8, 1024, (), None),
        (5, 768, ("cond_stage_model.transformer.x",), None),
        (4, 0, (), None),
    ],
)
def test_the_keys_tell_which_model_a_file_is_based_on(
    channels: int, attention: int, others: tuple[str, ...], base: str | None
) -> None:
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(others, (1,))
    shapes[f"{_UNET}input_blocks.0.0.weight"] = (320, channels, 3, 3)
    if attention:
        place = "input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight"
        shapes[f"{_UNET}{place}"] = (640, attention)
    assert base_model(shapes) == base
