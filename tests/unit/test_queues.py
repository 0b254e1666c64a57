"""A job waits in a queue that a suitable worker reads."""

import pytest

from imagefleet.shared.jobs.queues import queue_of
from imagefleet.shared.jobs.request import JobRequest


@pytest.mark.parametrize(
    ("parameters", "by_compile_key", "queue"),
    [
        ({}, True, "n.default.native"),
        ({"model": "shapes", "height": 64, "width": 64}, True, "n.shapes.64x64"),
        ({"height": 64, "width": 64, "tenant": "gold"}, True, "n.default.64x64@gold"),
        ({"height": 64, "width": 64, "tenant": "gold"}, False, "n.default.native@gold"),
        ({"model": "shapes", "height": 64, "width": 64}, False, "n.shapes.native"),
    ],
)
def test_a_job_goes_to_the_queue_of_its_model_shape_and_tenant(
    parameters: dict[str, object], by_compile_key: bool, queue: str
) -> None:
    request = JobRequest.parse({"prompt": "a", **parameters})
    assert queue_of("n", request, by_compile_key=by_compile_key) == queue
