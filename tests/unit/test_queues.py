"""A job waits in a queue that a suitable worker reads."""

import pytest

from imagefleet.shared.jobs.queues import (
    list_for_add_ons,
    list_key,
    queue_of,
    queue_of_compile_key,
    tenant_of,
)
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


@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize("tenant", ["", "@gold"])
def test_jobs_whose_lora_a_worker_lacks_have_a_queue_that_names_them(
    tenant: str, priority: int
) -> None:
    plain = list_key(f"n.shapes.64x64{tenant}", priority)
    moved = list_for_add_ons(plain, {"style", "a.b/c+d"})
    queue = f"n.shapes.64x64&a.b/c+d&style{tenant}"
    assert moved == list_key(queue, priority)
    assert list_for_add_ons(moved, {"style"}) == list_key(f"n.shapes.64x64&style{tenant}", priority)
    assert queue_of_compile_key(queue) == "n.shapes.64x64"
    assert tenant_of(queue) == (tenant.removeprefix("@") or None)
