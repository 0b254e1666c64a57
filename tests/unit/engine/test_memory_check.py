"""Too little memory is reported before a weight is read, with what is needed and what to do."""

from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from imagefleet.shared.errors import DeviceError, TooLittleMemory
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.networks.transformer_memory import BlockSizes, sequence_bytes
from imagefleet.worker.engine.placement import memory_check
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.device_batch import device_errors
from tests.unit.engine.parity import FOLDER, load_in_float32, read_model
from tools.tpu.models import SHAPES, model_of

GIB = 2**30


def test_the_error_names_both_numbers_and_the_settings_to_change() -> None:
    memory_check.check_available(2 * GIB, 2 * GIB, "host")
    memory_check.check_available(2 * GIB, None, "device that does not report its memory")
    with pytest.raises(TooLittleMemory) as caught:
        memory_check.check_available(3 * GIB, 2 * GIB, "TPU v4")
    message = str(caught.value)
    assert "needs about 3.0 GiB and the TPU v4 has 2.0 GiB free" in message
    assert "try a smaller IMAGEFLEET_PER_DEVICE_BATCH, smaller IMAGEFLEET_SHAPES" in message
    assert "IMAGEFLEET_MESH=data=4,model=2" in message


def test_no_weight_is_read_if_the_model_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "host_memory", lambda: 3072)
    monkeypatch.setattr(TensorFiles, "read_slice", lambda *_: pytest.fail("a weight was read"))
    files = CheckpointFiles(FOLDER / "older")
    model = read_model(files)
    with pytest.raises(TooLittleMemory):
        load_in_float32(files, model)


def test_virtual_devices_share_the_weights_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = memory_check.MemoryNeed(weights=100, workspace=10, host=1)
    placement = Placement.of(8, 2)  # each weight lies in two parts
    monkeypatch.setattr(memory_check, "host_memory", lambda: 281)
    memory_check.require_memory(need, placement)
    monkeypatch.setattr(memory_check, "host_memory", lambda: 280)
    with pytest.raises(TooLittleMemory):
        memory_check.require_memory(need, placement)


def test_a_container_has_the_rest_of_its_limit(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4096\n")
    (tmp_path / "memory.current").write_text("1024\n")
    assert memory_check.host_memory(cgroup=tmp_path) == 3072


def test_a_container_without_a_limit_has_the_memory_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_check.host_memory(tmp_path / "meminfo", tmp_path) == 5 * 1024
    assert memory_check.host_memory(tmp_path / "none", tmp_path) is None


def test_the_workspace_grows_with_batch_shape_and_dtype() -> None:
    model = read_model(CheckpointFiles(FOLDER / "older"))
    networks = model.networks()

    def workspace(
        side: int,
        batch: int,
        platform: str = "cpu",
        dtype: str = "float32",
        streams: bool = False,
    ) -> int:
        workload = Workload(
            dtype=np.dtype(dtype),
            platform=platform,
            device_kind=platform,
            per_device_batch=batch,
            streams=streams,
        )
        return model.workspace_bytes(networks, Shape(height=side, width=side), workload)

    assert workspace(64, 1) <= workspace(64, 2) <= 2 * workspace(64, 1)
    assert workspace(64, 16) == 2 * workspace(64, 8)  # the step needs more than the decoder
    assert workspace(128, 1) >= 4 * workspace(64, 1)
    assert workspace(64, 1, dtype="float16") < workspace(64, 1)
    # A stream decodes one image at a time, beside the next steps.
    assert workspace(64, 1) < workspace(64, 1, streams=True) < 2 * workspace(64, 1)
    steps = [workspace(64, batch, streams=True) for batch in (1, 2, 3)]
    assert steps[1] - steps[0] == steps[2] - steps[1] <= workspace(64, 1)


def test_the_kernel_for_large_maps_holds_fewer_of_them() -> None:
    model, shape = model_of("sd14"), SHAPES["sd14"]
    with_kernel = Workload(
        dtype=np.dtype(ml_dtypes.bfloat16), platform="tpu", device_kind="TPU v5 lite"
    )
    without, networks = replace(with_kernel, device_kind="another TPU"), model.networks()
    fewer = model.workspace_bytes(networks, shape, with_kernel)
    assert fewer < model.workspace_bytes(networks, shape, without)


def test_a_text_encoder_on_tpu_stores_scores_since_no_kernel_is_causal_with_a_mask() -> None:
    text = BlockSizes(
        width=4096, inner_width=9728, heads=32, head_dim=128, masked=True, causal=True
    )
    workload = Workload(
        dtype=np.dtype(ml_dtypes.bfloat16), platform="tpu", device_kind="TPU v5 lite"
    )
    without = sequence_bytes(replace(text, causal=False), 512, workload)
    assert sequence_bytes(text, 512, workload) - without == 4 * 32 * 512 * 512


def test_exhausted_memory_during_warming_is_the_same_error() -> None:
    exhausted = jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: out of memory allocating 9 bytes\nat …"
    )
    reason = "out of memory allocating 9 bytes"
    with pytest.raises(TooLittleMemory, match=reason), memory_check.memory_errors():
        raise exhausted
    with pytest.raises(TooLittleMemory), memory_check.memory_errors(), device_errors():
        raise exhausted
    with pytest.raises(DeviceError), memory_check.memory_errors(), device_errors():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
