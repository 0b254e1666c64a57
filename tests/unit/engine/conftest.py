"""Fixtures for tests of the engine: checkpoints and warm engines."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

# XLA reads them once, before it first compiles. With the older emitters of fusions, and with one
# module for LLVM, a guided step of a tiny network compiles in 1.6 s of CPU in place of 3.8.
os.environ["XLA_FLAGS"] += (
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import pytest

from imagefleet.worker.engine.compile import executable_cache
from imagefleet.worker.engine.contract.interface import Engine
from imagefleet.worker.engine.loading.load_engine import load_engine
from tests.unit.engine.parity import FOLDER, Oracle


@pytest.fixture(scope="session", params=["older", "newer", "xl"])
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Stable Diffusion 1 in files of 2022, Stable Diffusion 2 in files of today, and SDXL."""
    return Oracle.read(request.param)


AS_WORKERS_DO = (
    *("clip_skip", "flux1_engine", "job_loras", "mesh", "one_image_at_a_time"),
    *("pipeline", "prompt_weighting", "streams"),
)
"""Modules about images that must be equal bit for bit. Their tests in `make long` compile as
workers do, because equality depends on XLA's optimisations."""
_OF_WORKERS: dict[str, bool | str] = {
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": "32",
}
"""XLA's defaults, in place of the flags above."""
_VARIABLE = "JAX_DISABLE_MOST_OPTIMIZATIONS"


@pytest.fixture(scope="module", autouse=True)
def _compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile without most optimisations: programs of tests run for a few steps each, and XLA needs
    a third of the time. Workers of other tests compile as in production."""
    name = request.module.__name__.rpartition(".test_")[2]
    if request.config.option.markexpr.startswith("long") and name in AS_WORKERS_DO:
        workers = executable_cache._COMPILER_OPTIONS["cpu"] | _OF_WORKERS
        with patch.dict(executable_cache._COMPILER_OPTIONS, cpu=workers):
            yield
        return
    options: dict[str, Any] = {"xla_backend_optimization_level": "0"}
    # The variable is part of the fingerprint of executables, so that the two kinds do not mix.
    with (
        patch.dict(executable_cache._COMPILER_OPTIONS, cpu=options),
        patch.dict(os.environ, {_VARIABLE: "true"}),
    ):
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of a checkpoint that the test may change."""
    return Path(shutil.copytree(FOLDER / "older", tmp_path / "broken"))


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The cache of executables of all processes that run tests, as of workers on one host."""
    folder = tmp_path_factory.getbasetemp()
    return (folder if worker_id == "master" else folder.parent) / "cache"


@pytest.fixture(scope="session")
def warm_engine(cache_dir: Path) -> Callable[[int, int], Engine]:
    """Return a function from devices and images per device to a warm engine; it caches engines."""
    engines: dict[tuple[int, int, bool], Engine] = {}

    def engine(devices: int, per_device_batch: int) -> Engine:
        key = (devices, per_device_batch, _VARIABLE in os.environ)
        if key not in engines:
            loaded = load_engine(
                str(FOLDER / "older"),
                devices=devices,
                per_device_batch=per_device_batch,
                cache_dir=cache_dir,
                max_num_inference_steps=20,
            )
            loaded.warm()
            engines[key] = loaded
        return engines[key]

    return engine
