"""Images that enter and leave a stream between steps equal those of whole batches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import (
    Engine,
    FinishedImage,
    ImageSpec,
    Shape,
    Stream,
)
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tests.unit.engine.parity import FOLDER
from tests.unit.engine.stream_runs import run_stream

NATIVE: Final = Shape(height=32, width=32)
WarmEngine = Callable[[int, int], Engine]
Opened = tuple[DiffusionEngine, list[Stream]]


def _open(cache_dir: Path, devices: int, per_device_batch: int) -> Opened:
    engine = load_engine(
        str(FOLDER / "older"),
        devices=devices,
        per_device_batch=per_device_batch,
        cache_dir=cache_dir,
        max_num_inference_steps=20,
    )
    assert isinstance(engine, DiffusionEngine)
    return engine, list(engine.open_streams())


@pytest.fixture(scope="module")
def two_devices(cache_dir: Path) -> Opened:
    return _open(cache_dir, 2, 1)


@pytest.fixture(scope="module")
def three_slots(cache_dir: Path) -> Opened:
    return _open(cache_dir, 1, 3)


def _specs(count: int) -> list[ImageSpec]:
    schedulers = tuple(SCHEDULERS)
    return [
        ImageSpec(
            prompt=f"a red circle on blue {index}",
            negative_prompt="blue" if index % 2 else "",
            seed=1234567890123 + index,
            num_inference_steps=3 + index,
            guidance_scale=1.0 + index % 3,
            scheduler=schedulers[index % len(schedulers)],
            init_image=_init_image(index) if index % 4 == 3 else None,
        )
        for index in range(count)
    ]


def _init_image(seed: int) -> InitImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
    return InitImage(pixels=pixels, strength=0.7, digest=f"sha256:{seed}")


def test_an_image_of_a_one_slot_stream_is_bit_equal_to_that_of_a_whole_batch(
    two_devices: Opened, warm_engine: WarmEngine
) -> None:
    engine, streams = two_devices
    specs = _specs(8)
    together = warm_engine(8, 1).start_batch(specs, NATIVE).images()
    before = engine.recompiles  # it counts the programs of this session's other engines, too
    for stream in streams:
        for spec, alone, image in zip(
            specs, run_stream(stream, NATIVE, 1, specs), together, strict=True
        ):
            # Alone, an image without guidance takes another program, whose rounding differs with
            # the processor.
            allowed = 0 if spec.is_guided(engine.info) else 1
            assert np.abs(alone.astype(int) - image).max() <= allowed, spec
    assert engine.recompiles == before


def test_images_that_enter_beside_others_equal_those_of_whole_batches(
    three_slots: Opened, warm_engine: WarmEngine
) -> None:
    engine, (stream,) = three_slots
    specs = _specs(8)
    together = warm_engine(8, 1).start_batch(specs, NATIVE).images()
    before = engine.recompiles
    images = np.array(run_stream(stream, NATIVE, 3, specs))
    assert np.abs(images.astype(int) - together).max() <= 1  # as for whole batches of other sizes
    reversed_images = np.array(run_stream(stream, NATIVE, 3, specs[::-1])[::-1])
    assert np.abs(reversed_images.astype(int) - together).max() <= 1
    assert engine.recompiles == before


def test_a_dropped_slot_takes_another_image_and_touches_no_neighbour(three_slots: Opened) -> None:
    _, (stream,) = three_slots
    kept, dropped, later = _specs(8)[5:8]
    expected = [run_stream(stream, NATIVE, 1, [each])[0] for each in (kept, later)]
    stream.start(0, kept, NATIVE)
    stream.start(1, dropped, NATIVE)
    for _ in range(3):
        assert stream.step() == []
    stream.drop(1)
    stream.start(1, later, NATIVE)
    finished: dict[int, FinishedImage] = {}
    while len(finished) < 2:
        for slot in stream.step():
            finished[slot] = stream.finish(slot)()
    np.testing.assert_array_equal(finished[0].pixels, expected[0])
    np.testing.assert_array_equal(finished[1].pixels, expected[1])


def test_a_stream_reports_the_steps_that_its_devices_have_done(two_devices: Opened) -> None:
    _, (stream, _) = two_devices
    spec = replace(_specs(1)[0], num_inference_steps=6, scheduler="pndm")
    stream.start(0, spec, NATIVE)
    seen = []
    while not (finished := stream.step()):
        seen.append(stream.steps_done(0))
    assert finished == [0]
    assert seen == sorted(seen)
    assert stream.steps_done(0) <= 6
    assert stream.previews()().shape == (1, 8, 8, 3)
    stream.finish(0)()


def test_a_stream_refuses_what_it_cannot_start_and_goes_on(two_devices: Opened) -> None:
    _, (stream, _) = two_devices
    spec = _specs(1)[0]
    expected = run_stream(stream, NATIVE, 1, [spec])[0]
    stream.start(0, spec, NATIVE)
    with pytest.raises(ValueError, match="slot 0 is not a free one of 1"):
        stream.start(0, spec, NATIVE)
    with pytest.raises(ValueError, match="shape 64x64 is not declared"):
        stream.start(0, spec, Shape(height=64, width=64))
    while not stream.step():
        pass
    np.testing.assert_array_equal(stream.finish(0)().pixels, expected)
    with pytest.raises(ValueError, match="scheduler 'no-such'"):
        stream.start(0, replace(spec, scheduler="no-such"), NATIVE)
    stream.reset()
    np.testing.assert_array_equal(run_stream(stream, NATIVE, 1, [spec])[0], expected)


def test_streams_share_the_executables_of_the_first(two_devices: Opened, cache_dir: Path) -> None:
    engine, _ = two_devices
    again, streams = _open(cache_dir, 2, 1)
    assert len(streams) == 2
    assert again._executable_cache.compiled == 0
    assert again._executable_cache.reloaded == 14
    assert engine._executable_cache.compiled in (0, 7), "the second stream compiled nothing"
