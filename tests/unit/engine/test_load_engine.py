"""What a loaded engine announces, and what loading rejects before anything is compiled."""

import json
import stat
from pathlib import Path

import pytest

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.engine.interface import Engine, Shape
from imagefleet.worker.engine.load_engine import load_engine
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
    defaults = {"num_inference_steps": 20, "guidance_scale": 3.0}
    (checkpoint / "imagefleet.json").write_text(json.dumps(defaults))
    info = _load(checkpoint, cache_dir).info
    assert (info.default_num_inference_steps, info.default_guidance_scale) == (20, 3.0)


def test_wrong_defaults_are_rejected(checkpoint: Path, cache_dir: Path) -> None:
    (checkpoint / "imagefleet.json").write_text('{"num_inference_steps": "many"}')
    with pytest.raises(CheckpointError, match=r"imagefleet\.json: num_inference_steps='many'"):
        _load(checkpoint, cache_dir)


def test_the_error_of_an_indivisible_shape_names_the_multiple(cache_dir: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"shape 32x36: .* multiples of 16 \(autoencoder 4 x UNet 4\)"
    ):
        _load(FOLDER / "newer", cache_dir, shapes=[Shape(height=32, width=36)])


@pytest.mark.parametrize(("setting", "value"), [("devices", 99), ("dtype", "float8")])
def test_a_setting_that_this_host_does_not_support_is_rejected(
    cache_dir: Path, setting: str, value: object
) -> None:
    with pytest.raises(ConfigurationError, match=f"{setting}={value!r}"):
        _load(FOLDER / "older", cache_dir, **{setting: value})


def test_the_cache_folder_is_made_private(tmp_path: Path) -> None:
    from imagefleet.worker.engine.compile.jax_compilation_cache import use_cache

    (tmp_path / "cache").mkdir(mode=0o755)
    use_cache(tmp_path / "cache")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_cache_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    from imagefleet.worker.engine.compile.jax_compilation_cache import use_cache

    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cache_dir"):
        use_cache(tmp_path / "file" / "cache")


def test_fake_is_a_model_name(tmp_path: Path) -> None:
    engine = load_engine("fake:seconds=0.01,capacity=3", cache_dir=tmp_path)
    assert isinstance(engine, FakeEngine)
    assert engine.capacity == 3
