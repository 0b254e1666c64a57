"""Which queue a job waits in."""

import pytest

from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.jobs.queues import queue_of


@pytest.mark.parametrize(
    ("asked", "sorted_by_key", "queue"),
    [
        ({}, True, "n.default.native"),
        ({"model": "shapes", "height": 64, "width": 64}, True, "n.shapes.64x64"),
        ({"height": 64, "width": 64, "tenant": "gold"}, True, "n.default.64x64@gold"),
        ({"height": 64, "width": 64, "tenant": "gold"}, False, "n.default.native@gold"),
        ({"model": "shapes", "height": 64, "width": 64}, False, "n.shapes.native"),
    ],
)
def test_a_job_waits_where_a_worker_that_can_make_it_looks(
    asked: dict[str, object], sorted_by_key: bool, queue: str
) -> None:
    request = JobRequest.parse({"prompt": "a", **asked})
    assert queue_of("n", request, sorted_by_key=sorted_by_key) == queue
