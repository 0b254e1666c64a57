"""Jobs with other ControlNets share a batch or a stream of an engine, as `test_control_nets` says
of the programs."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.parity import load_older
from tests.unit.engine.test_control_nets import options_for, spec_of
from tools.parity.control_cases import CASES

SHAPE: Final = Shape(height=32, width=32)
SPECS: Final = [replace(spec_of(case, "pndm"), seed=7) for case in CASES["older"]]


def _load(cache_dir: Path, **sizes: Any) -> DiffusionEngine:
    options = ModelOptions(control_nets=options_for("older"))
    return load_older(cache_dir, max_num_inference_steps=8, options=options, **sizes)


def test_eight_jobs_are_bit_equal_alone_and_near_in_streams_and_on_split_weights(
    cache_dir: Path,
) -> None:
    engine = _load(cache_dir, devices=8, per_device_batch=1)
    engine.warm()
    before = engine.recompiles
    together = engine.start_batch(SPECS, SHAPE).images()
    assert len({image.tobytes() for image in together}) == 8
    for spec, image in zip(SPECS, together, strict=True):
        alone = engine.start_batch([spec], SHAPE).images()[0]
        np.testing.assert_array_equal(alone, image, err_msg=str(spec.controlnet))
    backwards = engine.start_batch(SPECS[::-1], SHAPE).images()[::-1]
    np.testing.assert_array_equal(backwards, together)
    assert engine.recompiles == before
    for images in (_by_stream(cache_dir), _by_split_weights(cache_dir)):
        assert np.abs(images - together.astype(int)).max() <= 1


def _by_stream(cache_dir: Path) -> NDArray[np.int_]:
    """Return the images of a stream, which enter it as others leave."""
    (stream,) = _load(cache_dir, devices=1, per_device_batch=3).open_streams()
    images: dict[int, NDArray[np.uint8]] = {}
    running: dict[int, int] = {}
    waiting = list(range(len(SPECS)))
    while waiting or running:
        for slot in {0, 1, 2} - running.keys():
            if waiting:
                running[slot] = waiting.pop(0)
                stream.start(slot, SPECS[running[slot]], SHAPE)
                break  # so that the slots are at different steps
        for slot in stream.step():
            images[running.pop(slot)] = stream.finish(slot)().pixels
    return np.stack([images[number] for number in range(len(SPECS))]).astype(int)


def _by_split_weights(cache_dir: Path) -> NDArray[np.int_]:
    split = _load(cache_dir, mesh="data=1,model=2", devices=2, per_device_batch=8)
    split.warm()
    return split.start_batch(SPECS, SHAPE).images().astype(int)
