"""A text encoder on the host's CPU: its memory, its programs, and the images of its states."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError, TooLittleMemory
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.loading.build_engine import load_networks
from imagefleet.worker.engine.loading.compile_ahead import AbstractModel
from imagefleet.worker.engine.loading.memory_need import memory_need
from imagefleet.worker.engine.loading.read_model import read_supported
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement import memory_check
from imagefleet.worker.engine.placement.memory_check import MemoryNeed, require_memory
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.host_text_encoder import HostTextEncoder
from tests.unit.engine.flow_family import (
    FLUX1,
    FLUX2_KLEIN,
    SLOTS,
    STABLE_DIFFUSION_3,
    Z_IMAGE,
    FlowFamily,
)
from tests.unit.engine.flow_parity import ENCODE_TEXT
from tests.unit.engine.parity import FLOAT32_ON_CPU, FOLDER, worst
from tests.unit.engine.stream_runs import run_stream

FAMILIES: Final = pytest.mark.parametrize(
    "family",
    [FLUX2_KLEIN, Z_IMAGE, FLUX1, STABLE_DIFFUSION_3],
    ids=lambda family: family.title,
)
ON_HOST: Final = ModelOptions(host_text_encoder=True, text_cache_bytes=1_000_000)


@FAMILIES
def test_its_weights_count_for_the_host_and_not_for_the_devices_that_split_the_others(
    family: FlowFamily, tmp_path: Path
) -> None:
    family.case.write_configs(tmp_path)
    model = read_supported(CheckpointFiles(tmp_path), ON_HOST)
    networks = model.networks()
    whole, split = FLOAT32_ON_CPU, replace(FLOAT32_ON_CPU, model=2)
    [name] = model.text_networks
    text = memory_need(model, {name: networks[name]}, (), whole).weights
    assert text > 0
    for workload in (whole, split):
        on_devices = memory_need(model, networks, (family.shape,), workload)
        on_host = memory_need(
            model, networks, (family.shape,), replace(workload, host_text_encoder=True)
        )
        del networks[name]
        assert on_host.weights == memory_need(model, networks, (), workload).weights
        assert on_host.workspace == on_devices.workspace
        assert (on_devices.host, on_host.host) == (0, text)
        networks = model.networks()


def test_an_accelerator_does_not_help_a_host_with_too_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 100}, device_kind="TPU v4")
    mesh = SimpleNamespace(devices=np.array([device]))
    placement: Any = SimpleNamespace(platform="tpu", mesh=mesh)
    monkeypatch.setattr(memory_check, "host_memory", lambda: 2**30)
    require_memory(MemoryNeed(weights=90, workspace=10, host=2**30), placement)
    with pytest.raises(
        TooLittleMemory,
        match=r"2\.0 GiB and the host has 1\.0 GiB free; try IMAGEFLEET_HOST_TEXT_ENC",
    ):
        require_memory(MemoryNeed(weights=90, workspace=10, host=2**31), placement)


@pytest.mark.parametrize("streams", [False, True])
def test_devices_get_neither_its_program_nor_its_weights(streams: bool, tmp_path: Path) -> None:
    Z_IMAGE.case.write_configs(tmp_path)
    placement, programs = Placement.of(1), []
    for options in (ON_HOST, ModelOptions()):
        model = AbstractModel.of(
            read_supported(CheckpointFiles(tmp_path), options),
            placement,
            ExecutableCache([], {}, placement.device_list),
            token_lengths=(512,),
            per_device_batch=1,
            dtype=np.dtype(np.float32),
            max_steps=4,
            options=replace(options, streams=streams),
        )
        assert bool(model.compiler.weights.text[0]) != options.host_text_encoder
        programs.append(model.compiler.lowerings(Z_IMAGE.shape, model.rgb_factors).keys())
    assert programs[1] - programs[0] == {"encode_text"}


def test_its_states_are_those_of_the_devices(tmp_path: Path) -> None:
    oracle = Z_IMAGE.oracle(tmp_path)
    programs, weights = load_networks(
        oracle.files, oracle.model, Placement.of(2, 2), FLOAT32_ON_CPU, options=ON_HOST
    )
    assert _devices(weights.text) == {1}
    assert 2 in _devices(weights.denoiser)
    encoding = programs.denoiser.text_encoding
    assert encoding is not None
    encode = HostTextEncoder(encoding, weights, 512, Placement.on_host())
    (ids,) = oracle.tokens([("blue", Z_IMAGE.case.PROMPTS[0])])
    expected = ENCODE_TEXT(encoding, oracle.weights, ids[0, 1])
    assert worst(encode(ids[0, 1]), np.asarray(expected)) < 1e-6


def _devices(weights: Any) -> set[int]:
    return {len(each.sharding.device_set) for each in jax.tree.leaves(weights)}


def test_a_family_whose_programs_encode_prompts_refuses_it() -> None:
    with pytest.raises(ConfigurationError, match=r"^IMAGEFLEET_HOST_TEXT_ENCODER: models of Stab"):
        read_supported(CheckpointFiles(FOLDER / "older"), ON_HOST)


@FAMILIES
def test_images_of_streams_and_of_whole_batches_are_those_of_diffusers(
    family: FlowFamily, tmp_path: Path
) -> None:
    folder = family.write(tmp_path / "model")
    specs = family.specs()
    with family.engine(folder, 2, ON_HOST) as engine:
        (stream,) = engine.open_streams()
        encoded = []
        for _ in range(2):
            images = run_stream(stream, family.shape, SLOTS, list(specs.values()))
            family.check(images, list(specs))
            encoded.append(engine.text_cache.misses)
        assert encoded[0] == encoded[1] > 0
        assert engine.recompiles == 0
        family.check_whole_batches(engine, specs)
