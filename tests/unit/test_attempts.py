"""Where a job is, told by its pictures."""

import numpy as np

from imagefleet.shared.jobs.model import JobRequest
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.jobs.attempt import plan_attempt

BLACK = np.zeros((64, 64, 3), np.uint8)


def test_the_step_of_a_job_is_the_mean_over_its_pictures_and_never_goes_back() -> None:
    request = JobRequest(prompt="a", num_images_per_prompt=4, num_inference_steps=10)
    attempt = plan_attempt("j", request, FakeEngine().info)
    told = [attempt.step_of_all(5, painting=2), attempt.step_of_all(10, painting=2)]
    told.append(attempt.step_of_all(1, painting=2))  # the first two are not fetched yet
    attempt.deliver(0, BLACK)
    attempt.deliver(1, BLACK)
    told += [attempt.step_of_all(5, painting=2), attempt.step_of_all(10, painting=2)]
    assert told == [2, 5, 5, 7, 10]
