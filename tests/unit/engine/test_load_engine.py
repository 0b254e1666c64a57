"""What a loaded engine announces, and what loading rejects before anything is compiled."""

import json
import stat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.interface import Engine, Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.loading.read_model import ModelSetup
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable
from tests.unit.engine.parity import FOLDER


def _load(model: Path, cache_dir: Path, **settings: object) -> Engine:
    return load_engine(str(model), cache_dir=cache_dir, **settings)  # type: ignore[arg-type]


def test_a_model_announces_its_native_shape_and_diffusers_defaults(cache_dir: Path) -> None:
    engine = _load(FOLDER / "older", cache_dir, per_device_batch=2)
    assert engine.capacity == 16
    assert engine.info.name == "older"
    assert engine.info.shapes == (Shape(height=32, width=32),)
    assert engine.info.default_num_inference_steps == 50
    assert engine.info.default_guidance_scale == 7.5
    assert engine.info.default_scheduler == "pndm"
    assert engine.info.versions.keys() == {"jax", "jaxlib", "flax"}


def test_a_checkpoint_may_define_its_own_defaults(checkpoint: Path, cache_dir: Path) -> None:
    defaults = {"num_inference_steps": 20, "guidance_scale": 3.0, "height": 64, "width": 48}
    (checkpoint / "imagefleet.json").write_text(json.dumps(defaults))
    info = _load(checkpoint, cache_dir).info
    assert info.shapes == (Shape(height=64, width=48),)
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (20, 3.0)


def test_wrong_defaults_are_rejected(checkpoint: Path, cache_dir: Path) -> None:
    (checkpoint / "imagefleet.json").write_text('{"num_inference_steps": "many"}')
    with pytest.raises(CheckpointError, match=r"imagefleet\.json: num_inference_steps='many'"):
        _load(checkpoint, cache_dir)
    (checkpoint / "imagefleet.json").write_text('{"width": 65}')
    with pytest.raises(CheckpointError, match=r"imagefleet\.json: width=65 is not a multiple of 8"):
        _load(checkpoint, cache_dir)


def test_the_error_of_an_indivisible_shape_names_the_multiple(cache_dir: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^IMAGEFLEET_SHAPES: 32x36: .* multiples of 16 \(autoencoder 4 x denoiser 4\)",
    ):
        _load(FOLDER / "newer", cache_dir, shapes=[Shape(height=32, width=36)])


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("devices", 99, "IMAGEFLEET_DEVICES or IMAGEFLEET_MESH takes 99 devices, the host has 8 "),
        ("dtype", "float8", "IMAGEFLEET_DTYPE='float8'"),
    ],
)
def test_a_setting_that_this_host_does_not_support_is_rejected(
    cache_dir: Path, setting: str, value: object, error: str
) -> None:
    with pytest.raises(ConfigurationError, match=error):
        _load(FOLDER / "older", cache_dir, **{setting: value})


def test_a_scheduler_that_cannot_make_its_table_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_schedule: object, steps: int, _skipped: int) -> CoefficientTable:
        raise ZeroDivisionError(f"at {steps} steps")

    setup = ModelSetup.read(FOLDER / "older", (), ModelOptions())
    monkeypatch.setitem(cast(dict[str, Any], registry.SCHEDULERS), "lms", broken)
    offered = setup.schedulers(20)
    assert "lms" not in offered
    assert {"pndm", "ddim", "unipc"} <= set(offered)
    assert "lms is not offered: its table of 1 steps cannot be made (at 1 steps)" in caplog.text
    monkeypatch.setitem(cast(dict[str, Any], registry.SCHEDULERS), setup.default_scheduler, broken)
    with pytest.raises(CheckpointError, match="pndm cannot run with it: its table of 20 steps"):
        setup.schedulers(20)


def test_the_cache_folder_is_made_private(tmp_path: Path) -> None:
    from imagefleet.worker.engine.compile.jax_compilation_cache import use_cache

    (tmp_path / "cache").mkdir(mode=0o755)
    use_cache(tmp_path / "cache")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_cache_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    from imagefleet.worker.engine.compile.jax_compilation_cache import use_cache

    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="IMAGEFLEET_CACHE_DIR="):
        use_cache(tmp_path / "file" / "cache")


def test_fake_is_a_model_name(tmp_path: Path) -> None:
    engine = load_engine("fake:seconds=0.01,capacity=3", cache_dir=tmp_path)
    assert isinstance(engine, FakeEngine)
    assert engine.capacity == 3


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("encoder.conv_in.weight", "the autoencoder's encoder"),
        ("decoder.conv_in.weight", "decoder"),
    ],
)
def test_finite_weights_that_overflow_are_refused_before_the_worker_is_ready(
    checkpoint: Path, cache_dir: Path, key: str, part: str
) -> None:
    file = checkpoint / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    tensors[key] = np.full(tensors[key].shape, 3e38, np.float32)
    save_file(tensors, file)
    engine = _load(checkpoint, cache_dir, devices=1)
    with pytest.raises(CheckpointError, match=rf"{part} .*make NaN or infinity of a test image"):
        engine.warm()


def test_a_scheduler_that_the_host_chooses_is_the_default(cache_dir: Path) -> None:
    options = ModelOptions(scheduler="euler")
    info = _load(FOLDER / "older", cache_dir, options=options).info
    assert info.default_scheduler == "euler"
    with pytest.raises(
        ConfigurationError, match="IMAGEFLEET_SCHEDULER='ddpm' cannot run this model"
    ):
        _load(FOLDER / "older", cache_dir, options=ModelOptions(scheduler="ddpm"))


@pytest.mark.parametrize(
    ("size", "version", "shape"),
    [
        (8, "0.8.1", Shape(height=256, width=256)),
        (8, "0.9.0", Shape(height=32, width=32)),
        ([8, 12], "0.8.1", Shape(height=32, width=48)),
    ],
)
def test_the_native_shape_is_that_of_diffusers(
    checkpoint: Path, size: object, version: str, shape: Shape
) -> None:
    """StableDiffusionPipeline corrects sizes below 64 that diffusers 0.8 and older wrote."""
    config = checkpoint / "unet" / "config.json"
    fields = {"sample_size": size, "_diffusers_version": version}
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    assert Configs.read(CheckpointFiles(checkpoint)).native_shape == shape


def test_without_a_native_size_the_shapes_must_be_declared(
    checkpoint: Path, cache_dir: Path
) -> None:
    config = checkpoint / "unet" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"sample_size": None}))
    with pytest.raises(ConfigurationError, match=r"sample_size is null, .* set IMAGEFLEET_SHAPES"):
        _load(checkpoint, cache_dir)
    shapes = (Shape(height=16, width=16),)
    assert _load(checkpoint, cache_dir, shapes=shapes).info.shapes == shapes
