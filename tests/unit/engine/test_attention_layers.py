"""The list of a model's attention layers is what its programs compute."""

import jax
import numpy as np
import pytest

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.attention_layers import attention_layers
from imagefleet.worker.engine.kernels import attention as attention_module
from imagefleet.worker.engine.kernels.attention_backend import (
    AttentionSpec,
    Backend,
    choose_backend,
)
from imagefleet.worker.engine.placement.mesh import Placement
from tests.unit.engine.parity import Oracle
from tools.tpu.programs import lower_programs

FLOAT32 = np.dtype(np.float32)


def test_every_layer_that_the_programs_compute_is_listed(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: set[AttentionSpec] = set()

    def record(platform: str, spec: AttentionSpec) -> Backend:
        computed.add(spec)
        return choose_backend(platform, spec)

    monkeypatch.setattr(attention_module, "choose_backend", record)
    shape = Shape(height=64, width=128)
    programs = lower_programs(oracle.model, shape, Placement.of(1), dtype=FLOAT32)
    for name in ("begin", "step", "encode", "decode"):
        assert isinstance(programs[name](), jax.stages.Lowered)
    assert computed == attention_layers(oracle.configs, shape, FLOAT32)
