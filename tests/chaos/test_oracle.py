"""The audit of a real model takes images within a level, and no others."""

from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.encode import encode
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.chaos.oracle import FAKE, SHAPES, Oracle
from tests.chaos.planned_jobs import PlannedJob, ProducerKind, Scenario, for_real_model

ENGINE: Final = FakeEngine(shapes=SHAPES)
REAL: Final = Oracle(ENGINE, levels=1)
JOB: Final = for_real_model(
    PlannedJob(
        id="job-1",
        producer=ProducerKind.SUBMIT,
        scenario=Scenario.FAILS_BATCH,
        due_s=0.0,
        resent=False,
        parameters={"prompt": "a", "seed": 1, "height": 64, "width": 64, "format": "webp"},
    )
)


def _file(job: PlannedJob, off: int = 0) -> bytes:
    """Return the file of the first image of a job, with one value that is `off`."""
    attempt = plan_attempt(job.id, job.request, ENGINE.info)
    [pixels] = ENGINE.start_batch(attempt.specs, attempt.shape).images()
    changed = np.array(pixels, np.uint8)
    changed[0, 0, 0] = abs(int(changed[0, 0, 0]) - off)
    [spec] = attempt.specs
    metadata = image_metadata(job_id=job.id, spec=spec, shape=attempt.shape, info=ENGINE.info)
    return encode(changed, job.request.format.value, metadata).data


def test_a_job_for_a_real_model_succeeds_and_its_file_loses_nothing() -> None:
    assert (JOB.scenario, JOB.parameters["format"]) == (Scenario.SUCCEEDS, "png")


@pytest.mark.parametrize(("off", "agrees"), [(0, True), (1, True), (2, False)])
def test_a_value_may_be_one_level_off(off: int, agrees: bool) -> None:
    [expected] = REAL.expected(JOB)
    data = _file(JOB, off)
    assert REAL.agrees(expected, data) is agrees
    assert FAKE.agrees(expected, data) is (off == 0)


def test_the_image_of_another_job_does_not_agree() -> None:
    [expected] = REAL.expected(JOB)
    for other in (
        replace(JOB, id="job-2"),
        replace(JOB, parameters={**JOB.parameters, "height": 32, "width": 32}),
    ):
        assert not REAL.agrees(expected, _file(other))
