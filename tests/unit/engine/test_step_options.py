"""The steps of transformers are compiled with the options of their kind of device."""

from pathlib import Path

import jax
import numpy as np
import pytest

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.compile import program_compiler
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.loading.compile_ahead import AbstractModel
from imagefleet.worker.engine.loading.read_model import read_supported
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement
from tests.unit.engine.flow_family import Z_IMAGE


def test_the_options_reach_the_compiler_with_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Z_IMAGE.case.write_configs(tmp_path)
    placement = Placement.of(1)
    unknown: dict[str, bool | str] = {"xla_unknown_option": "1"}
    monkeypatch.setattr(program_compiler, "_LARGE_PRODUCTS", {placement.device_kind: unknown})
    model = AbstractModel.of(
        read_supported(CheckpointFiles(tmp_path), ModelOptions()),
        placement,
        ExecutableCache([], {}, placement.device_list),
        token_lengths=(512,),
        per_device_batch=1,
        dtype=np.dtype(np.float32),
        max_steps=4,
    )
    lowerings = model.compiler.lowerings(Z_IMAGE.shape, model.rgb_factors)
    lowerings["preview"]().compile()
    for step in ("step", "unguided_step"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_unknown_option"):
            lowerings[step]().compile()
