"""The step of a job is computed from the steps of its images."""

import numpy as np

from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import plan_attempt

BLACK = np.zeros((64, 64, 3), np.uint8)


def test_the_step_of_a_job_is_the_mean_over_its_images_and_never_decreases() -> None:
    request = JobRequest(prompt="a", num_images_per_prompt=4, num_inference_steps=10)
    attempt = plan_attempt("j", request, FakeEngine().info)
    steps = [attempt.advance_step([5, 5]), attempt.advance_step([10, 10])]
    steps.append(attempt.advance_step([1, 1]))  # the first two are not delivered yet
    attempt.deliver(0, BLACK)
    attempt.deliver(1, BLACK)
    steps += [attempt.advance_step([5, 5]), attempt.advance_step([10, 10])]
    assert steps == [2, 5, 5, 7, 10]
