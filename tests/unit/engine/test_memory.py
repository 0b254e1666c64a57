"""Too little memory is said before a weight is read, in one sentence with what is needed."""

from pathlib import Path

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import DeviceError, TooLittleMemory
from imagefleet.worker.engine import memory_check
from imagefleet.worker.engine.batch import device_errors
from imagefleet.worker.engine.build import load_networks
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.checkpoint.files import TensorFiles
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.mesh import Placement
from tests.unit.engine.parity import FOLDER

GIB = 2**30


def test_too_little_is_an_error_with_both_numbers_and_the_ways_out() -> None:
    memory_check.check(2 * GIB, 2 * GIB, "host")
    memory_check.check(2 * GIB, None, "device whose runtime does not say")
    with pytest.raises(TooLittleMemory) as caught:
        memory_check.check(3 * GIB, 2 * GIB, "TPU v4")
    said = str(caught.value)
    assert "needs about 3.0 GiB and the TPU v4 has 2.0 GiB free" in said
    assert "per_device_batch" in said
    assert "model=2" in said


def test_no_weight_is_read_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "host_memory", lambda: 3072)
    monkeypatch.setattr(TensorFiles, "part", lambda *_: pytest.fail("a weight was read"))
    folder = FOLDER / "older"
    configs = Configs.read(folder, safety_checker=False)
    with pytest.raises(TooLittleMemory):
        load_networks(folder, configs, Placement.of(1), np.dtype(np.float32))


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4096\n")
    (tmp_path / "memory.current").write_text("1024\n")
    assert memory_check.host_memory(cgroup=tmp_path) == 3072


def test_a_container_without_a_limit_has_what_the_host_has(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_check.host_memory(tmp_path / "meminfo", tmp_path) == 5 * 1024
    assert memory_check.host_memory(tmp_path / "none", tmp_path) is None


def test_the_workspace_grows_with_batch_and_shape() -> None:
    configs = Configs.read(FOLDER / "older", safety_checker=False)

    def needed(side: int, batch: int, platform: str = "cpu", dtype: str = "float32") -> int:
        return memory_check.workspace(
            configs,
            Shape(height=side, width=side),
            per_device_batch=batch,
            dtype=np.dtype(dtype),
            platform=platform,
        )

    assert needed(64, 2) == 2 * needed(64, 1)
    assert needed(128, 1) >= 4 * needed(64, 1)
    assert needed(64, 1, dtype="float16") < needed(64, 1)


def test_memory_that_ends_while_warming_is_the_same_error() -> None:
    ended = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory allocating 9 bytes\nat …")
    said = "out of memory allocating 9 bytes"
    with pytest.raises(TooLittleMemory, match=said), memory_check.said_clearly():
        raise ended
    with pytest.raises(TooLittleMemory), memory_check.said_clearly(), device_errors():
        raise ended
    with pytest.raises(DeviceError), memory_check.said_clearly(), device_errors():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
