"""An image that a job makes alone has the bits that it has among the other images of its prompt."""

from pathlib import Path
from typing import Final

import numpy as np

from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.unit.engine.parity import load_older

NATIVE: Final = Shape(height=32, width=32)
IMAGES: Final = 4


def _request(index: int | None) -> JobRequest:
    return JobRequest(
        prompt="a star",
        seed=7,
        num_images_per_prompt=IMAGES,
        image_index=index,
        num_inference_steps=3,
    )


def test_an_image_made_alone_is_bit_equal_to_that_of_the_whole_job(cache_dir: Path) -> None:
    engine = load_older(cache_dir, devices=4, per_device_batch=1, max_num_inference_steps=20)
    engine.warm()
    every = plan_attempt("j", _request(None), engine.info).specs
    together = engine.start_batch(every, NATIVE).images()
    assert len({image.tobytes() for image in together}) == IMAGES
    for index in range(IMAGES):
        specs = plan_attempt("j", _request(index), engine.info).specs
        [alone] = engine.start_batch(specs, NATIVE).images()
        np.testing.assert_array_equal(alone, together[index])
    assert engine.recompiles == 0
