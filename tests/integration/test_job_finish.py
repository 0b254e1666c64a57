"""Finishing a job stores its images once, and only for its current attempt."""

import time

import numpy as np
import pytest
import redis

from imagefleet.shared.errors import LeaseLost, StorageUnavailable
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.progress import ProgressReport
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.base import StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from tests.support.records import start_attempt


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


class FlakyStore(MemoryStore):
    """Fails the first put and every second one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        self.puts += 1
        if self.puts % 2:
            raise StorageUnavailable("not now")
        return super().put(key, data, content_type)


def _attempt_with_images(records: JobRecords, images: int = 1) -> Attempt:
    request = JobRequest.parse({"prompt": "a", "seed": 1, "num_images_per_prompt": images})
    records.submit([("j", request)])
    attempt = plan_attempt("j", request, FakeEngine().info, token="first")
    start_attempt(records, "j", attempt.token)
    for index in range(images):
        attempt.deliver(index, np.zeros((64, 64, 3), np.uint8))
    return attempt


def _finisher(records: JobRecords, store: MemoryStore, retry_time_s: float = 10) -> JobFinisher:
    return JobFinisher(store, records, FakeEngine(), "w", retry_time_s)


def test_an_attempt_that_is_not_current_stores_nothing(records: JobRecords) -> None:
    attempt, store = _attempt_with_images(records), MemoryStore()
    start_attempt(records, "j", "another", 2)
    with pytest.raises(LeaseLost):
        _finisher(records, store).finish(attempt)
    assert list(store.list()) == []
    assert records.get("j").state is State.RUNNING


def test_images_survive_uploads_that_fail(records: JobRecords) -> None:
    attempt, store = _attempt_with_images(records, images=4), FlakyStore()
    result = _finisher(records, store).finish(attempt)
    assert [image.index for image in result.images] == [0, 1, 2, 3]
    assert len(list(store.list())) == 8
    assert store.puts == 16


def test_an_upload_is_retried_for_a_limited_time(records: JobRecords) -> None:
    attempt = _attempt_with_images(records)
    with pytest.raises(StorageUnavailable):
        _finisher(records, FlakyStore(), retry_time_s=0).finish(attempt)
    assert records.get("j").state is State.RUNNING  # the caller decides about a retry


def test_the_record_of_a_succeeded_job_shows_all_its_steps(records: JobRecords) -> None:
    attempt = _attempt_with_images(records)
    records.record_progress(ProgressReport(job_id="j", attempt=attempt.token, step=3, steps=4))
    _finisher(records, MemoryStore()).finish(attempt)
    status = records.get("j")
    assert (status.state, status.step, status.steps) == (State.SUCCEEDED, 4, 4)


def test_a_finisher_counts_the_jobs_whose_ends_its_own_may_wait_for(records: JobRecords) -> None:
    in_flight = InFlight()
    finisher = JobFinisher(MemoryStore(), records, FakeEngine(), "w", 0, in_flight)
    attempt = _attempt_with_images(records)
    assert finisher._gather(attempt, workers=1).expected() == 0
    in_flight.add("1", attempt)
    in_flight.add("2", plan_attempt("on devices", attempt.request, FakeEngine().info))
    assert finisher._gather(attempt, workers=1).expected() == 1


def test_the_end_of_a_job_waits_for_others_at_most_a_twentieth_of_its_device_time(
    records: JobRecords,
) -> None:
    finisher, attempt = _finisher(records, MemoryStore()), _attempt_with_images(records)
    attempt.device_s = 7.0
    waits = [finisher._gather(attempt, workers).max_wait_s for workers in (1, 4, 8, 1000)]
    assert waits == pytest.approx([0.05, 0.2, 0.35, 0.35])


def test_jobs_in_flight_share_the_question_before_their_uploads(
    records: JobRecords, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda _: 1e6)  # a slow machine asks no more often
    in_flight = InFlight()
    finisher = JobFinisher(MemoryStore(), records, FakeEngine(), "w", 0, in_flight)
    attempt = _attempt_with_images(records, images=4)
    in_flight.add("1", attempt)
    before = client.info("commandstats")["cmdstat_hmget"]["calls"]
    finisher.finish(attempt)
    # One question for eight uploads, and the script that records the end reads once.
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] - before == 2
