"""The fake engine behaves as the interface of engines promises."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError, DeviceError
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.fake.fake_engine import FAIL, HANG, FakeEngine

SPEC = ImageSpec(prompt="a cat", num_inference_steps=3, guidance_scale=7.5)
NATIVE = Shape(height=64, width=64)


def test_an_image_depends_on_its_spec_only() -> None:
    engine = FakeEngine()
    alone = engine.start_batch([SPEC], NATIVE).images()
    other = replace(SPEC, seed=1)
    together = engine.start_batch([other, SPEC], NATIVE).images()
    assert alone.shape == (1, 64, 64, 3)
    np.testing.assert_array_equal(together[1], alone[0])
    assert not np.array_equal(together[0], alone[0])


def test_steps_are_reported_one_by_one() -> None:
    assert list(FakeEngine().start_batch([SPEC], NATIVE)) == [1, 2, 3]


def test_a_batch_ends_with_the_longest_slot_that_is_not_dropped() -> None:
    running_batch, seen = (
        FakeEngine().start_batch([SPEC, replace(SPEC, num_inference_steps=9)], NATIVE),
        [],
    )
    for step in running_batch:
        seen.append(step)
        running_batch.drop([1])
    assert seen == [1, 2, 3]


def test_an_init_image_reduces_the_steps_and_changes_the_image() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    spec = replace(SPEC, init_image=InitImage(pixels=pixels, strength=0.7, digest="sha256:1"))
    running_batch = FakeEngine().start_batch([spec], NATIVE)
    assert list(running_batch) == [1, 2]
    assert not np.array_equal(
        running_batch.images(), FakeEngine().start_batch([SPEC], NATIVE).images()
    )


def test_previews_are_small() -> None:
    running_batch = FakeEngine().start_batch([SPEC, SPEC], NATIVE)
    assert running_batch.previews()().shape == (2, 8, 8, 3)


def test_a_batch_with_the_fail_mark_fails() -> None:
    with pytest.raises(DeviceError, match="told to fail"):
        FakeEngine().start_batch([replace(SPEC, prompt=f"a cat {FAIL}")], NATIVE).images()


def test_a_batch_with_the_hang_mark_hangs_until_released() -> None:
    engine = FakeEngine()
    running_batch = engine.start_batch([replace(SPEC, prompt=HANG)], NATIVE)
    thread = threading.Thread(target=running_batch.images, daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    engine.release()
    thread.join(300)
    assert not thread.is_alive()


@pytest.mark.parametrize("model", ["fake:seconds=soon", "fake:speed=2", "fake:capacity=0"])
def test_an_unknown_or_wrong_option_is_rejected(model: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^IMAGEFLEET_MODEL='fake:.*: write fake:seconds="
    ):
        FakeEngine.parse(model, shapes=None, max_num_inference_steps=100)
