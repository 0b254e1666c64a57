"""Jobs with other mixtures of LoRA share a batch, and each gets the image that it gets alone.

`test_merged_loras` compares a job's LoRAs with merged weights, `test_lora` those with diffusers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.parity import FOLDER, SPEC, load_older, load_program, lora_options

NATIVE: Final = Shape(height=32, width=32)
Scales = Mapping[str, float]
MIXTURES: Final[Sequence[Scales]] = (
    {},
    {"kohya": 5.0},
    {"peft": 5.0},
    {"processors": -5.0},
    {"kohya": 2.5, "peft": 4.0},
    {"kohya": 2.5, "peft": -4.0},
    {"peft": 5.0, "processors": 3.0},
    {"kohya": 1.0, "peft": 2.0, "processors": 3.0},
)
"""The scales are large, because the images of this random checkpoint hardly depend on its UNet."""
ALL: Final = lora_options({"kohya": 1.0, "peft": 1.0, "processors": 1.0})


def _load(cache_dir: Path, loras: Sequence[LoraOption], **sizes: Any) -> DiffusionEngine:
    options = ModelOptions(job_loras=tuple(loras))
    return load_older(cache_dir, max_num_inference_steps=8, options=options, **sizes)


def _specs(mixtures: Sequence[Scales] = MIXTURES) -> list[ImageSpec]:
    return [replace(SPEC, loras=tuple(sorted(mixture.items()))) for mixture in mixtures]


@pytest.fixture(scope="module")
def engine(cache_dir: Path) -> DiffusionEngine:
    """Eight devices with one slot each: only so are images bit-equal in any slot."""
    loaded = _load(cache_dir, ALL, devices=8, per_device_batch=1)
    loaded.warm()
    return loaded


def test_eight_jobs_with_eight_mixtures_share_a_batch_and_each_is_bit_equal_to_itself_alone(
    engine: DiffusionEngine,
) -> None:
    specs, before = _specs(), engine.recompiles
    together = engine.start_batch(specs, NATIVE).images()
    assert len({image.tobytes() for image in together}) == 8
    for spec, image in zip(specs, together, strict=True):
        alone = engine.start_batch([spec], NATIVE).images()[0]
        np.testing.assert_array_equal(alone, image, err_msg=str(spec.loras))
    backwards = engine.start_batch(specs[::-1], NATIVE).images()[::-1]
    np.testing.assert_array_equal(backwards, together)
    assert engine.recompiles == before


def test_mixtures_that_enter_and_leave_a_stream_equal_themselves_alone(
    cache_dir: Path, engine: DiffusionEngine
) -> None:
    (stream,) = _load(cache_dir, ALL, devices=1, per_device_batch=2).open_streams()
    specs = [
        replace(spec, num_inference_steps=3 + number) for number, spec in enumerate(_specs()[:4])
    ]
    alone = []
    for spec in specs:
        stream.start(0, spec, NATIVE)
        while not stream.step():
            pass
        alone.append(stream.finish(0)().pixels)
    together: dict[int, NDArray[np.uint8]] = {}
    running: dict[int, int] = {}
    waiting = list(range(4))
    while waiting or running:
        for slot in {0, 1} - running.keys():
            if waiting:
                running[slot] = waiting.pop(0)
                stream.start(slot, specs[running[slot]], NATIVE)
        for slot in stream.step():
            together[running.pop(slot)] = stream.finish(slot)().pixels
    for number in range(4):
        assert np.abs(together[number].astype(int) - alone[number]).max() <= 1
    batch = engine.start_batch(specs, NATIVE).images().astype(int)
    assert np.abs(batch - alone).max() <= 1


def test_a_model_on_several_devices_computes_the_same(
    cache_dir: Path, engine: DiffusionEngine
) -> None:
    split = _load(cache_dir, ALL, mesh="data=1,model=2", devices=2, per_device_batch=2)
    split.warm()
    specs = _specs()[3:5]
    expected = engine.start_batch(specs, NATIVE).images().astype(int)
    assert np.abs(split.start_batch(specs, NATIVE).images() - expected).max() <= 1


def test_workers_with_other_files_do_not_share_programs(tmp_path: Path) -> None:
    """The same shapes with other columns are another program. The smallest one is enough."""
    compiled = []
    for loras in (ALL[:2], ALL[:2], ALL[1::-1]):
        engine = _load(tmp_path, loras, devices=1)
        compiled.append(load_program(engine, "preview").compiled)
    assert compiled == [1, 0, 1]


def test_a_lora_that_the_worker_does_not_hold_is_refused(engine: DiffusionEngine) -> None:
    spec = replace(_specs()[0], loras=(("style", 1.0),))
    with pytest.raises(ValueError, match="'style' is not available; there are kohya, peft, proc"):
        engine.start_batch([spec], NATIVE)


def test_a_worker_names_the_files_that_jobs_may_use(engine: DiffusionEngine) -> None:
    assert [lora.name for lora in engine.info.job_loras] == ["kohya", "peft", "processors"]
    assert all(lora.digest.startswith("sha256:") for lora in engine.info.job_loras)
    assert engine.info.loras == ()


def test_a_file_for_an_embedding_is_refused(cache_dir: Path, tmp_path: Path) -> None:
    shape = load_file(FOLDER / "older/text_encoder/model.safetensors")[
        "text_model.embeddings.token_embedding.weight"
    ].shape
    layer = "text_encoder.text_model.embeddings.token_embedding"
    file = tmp_path / "tokens.safetensors"
    save_file(
        {
            f"{layer}.lora_A.weight": np.ones((1, shape[1]), np.float32),
            f"{layer}.lora_B.weight": np.ones((shape[0], 1), np.float32),
        },
        file,
    )
    with pytest.raises(CheckpointError, match="is no linear layer and no convolution, so jobs"):
        _load(cache_dir, [LoraOption(name="tokens", path=str(file))], devices=1)
