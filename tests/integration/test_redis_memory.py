"""A waiting job takes little memory of Redis, and every release reads what is left out."""

import json

import redis

from imagefleet import Client
from imagefleet.shared.jobs.message_arguments import (
    SAME_IN_ALL_RELEASES,
    short_fields,
    stored_text,
    unpack,
)
from imagefleet.shared.jobs.request import JobRequest

_MAX_BYTES = 1_300
"""More than that is nearly what Celery's own message takes, which has no record beside it."""


def test_a_waiting_job_takes_little_memory(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    jobs = producer.submit_many(["x" * 90] * 200)
    keys = [*client.scan_iter(f"{namespace}:job:*"), *client.scan_iter(f"{namespace}.*")]
    used = sum(client.memory_usage(key, samples=0) or 0 for key in keys)
    assert used / len(jobs) <= _MAX_BYTES


def test_what_is_left_out_has_the_defaults_of_every_release() -> None:
    """Release 0.1.0 has these defaults. A test with it is in test_versions.py."""
    request = JobRequest.parse({"prompt": "a", "seed": 1})
    fields = request.model_dump(mode="json")
    assert {name: fields[name] for name in SAME_IN_ALL_RELEASES} == SAME_IN_ALL_RELEASES
    assert short_fields(request) == {"prompt": "a", "seed": 1}


def test_what_is_left_out_is_read_again() -> None:
    given = {
        "prompt": "ein Kreis 🔴",
        "seed": 1,
        "priority": 0,
        "preview": True,
        "format": "webp",
        "num_images_per_prompt": 2,
        "callback_url": "https://hooks.example/x",
        "callback_events": ["started"],
        "metadata": {"none": None, "nested": {"none": None}},
    }
    request = JobRequest.parse(given)
    assert short_fields(request) == given
    assert JobRequest.parse_stored(stored_text(request)) == request
    assert unpack({"version": 1, "request": short_fields(request)}, "j") == request
    assert json.loads(stored_text(request)) == given
