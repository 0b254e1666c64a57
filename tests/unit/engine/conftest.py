"""Checkpoints and engines that several tests share."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefleet.worker.engine.interface import Engine
from imagefleet.worker.engine.load import load_engine
from tests.unit.engine.parity import FOLDER, Oracle


@pytest.fixture(scope="session", params=["older", "newer", "xl"])
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Stable Diffusion 1 in files as of 2022, 2 in files as of today, and SDXL."""
    return Oracle.read(request.param)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint this test may break."""
    return Path(shutil.copytree(FOLDER / "older", tmp_path / "broken"))


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def warm_engine(cache_dir: Path) -> Callable[[int, int], Engine]:
    """A warm engine of so many devices and pictures per device; each made once."""
    made: dict[tuple[int, int], Engine] = {}

    def engine(devices: int, per_device_batch: int) -> Engine:
        if (devices, per_device_batch) not in made:
            loaded = load_engine(
                str(FOLDER / "older"),
                devices=devices,
                per_device_batch=per_device_batch,
                cache_dir=cache_dir,
                max_num_inference_steps=20,
            )
            loaded.warm()
            made[devices, per_device_batch] = loaded
        return made[devices, per_device_batch]

    return engine
