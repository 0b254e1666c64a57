"""Whether attempts still hold their jobs is asked once for all jobs whose images are there."""

import time

import numpy as np
import pytest
import redis

from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.current_attempts import MAX_AGE_S, CurrentAttemptCheck
from imagefleet.worker.jobs.in_flight import InFlight
from tests.support.records import start_attempt

JOBS = 8


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
def attempts(records: JobRecords, in_flight: InFlight) -> list[Attempt]:
    """Return the attempts of a batch, each with its image."""
    request = JobRequest.parse({"prompt": "a", "seed": 1})
    made = []
    for number in range(JOBS):
        attempt = plan_attempt(f"j{number}", request, FakeEngine().info, token=f"t{number}")
        records.submit([(attempt.job_id, request)])
        start_attempt(records, attempt.job_id, attempt.token)
        attempt.deliver(0, np.zeros((64, 64, 3), np.uint8))
        in_flight.add(str(number), attempt)
        made.append(attempt)
    return made


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that the check reads, as the only element of a list."""
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "clock_gettime", lambda _: clock[0])
    return clock


def _reads(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_hmget", {"calls": 0})["calls"])


def test_the_jobs_of_a_batch_share_one_question_until_it_is_old(
    records: JobRecords,
    in_flight: InFlight,
    attempts: list[Attempt],
    client: redis.Redis,
    now: list[float],
) -> None:
    check, before = CurrentAttemptCheck(records, in_flight), _reads(client)
    assert all(check.is_current(each) for each in attempts for _ in range(2))
    assert _reads(client) - before == JOBS
    now[0] += MAX_AGE_S
    assert all(check.is_current(each) for each in attempts)
    assert _reads(client) - before == 2 * JOBS


def test_jobs_that_are_still_on_the_devices_are_not_asked_about(
    records: JobRecords, in_flight: InFlight, attempts: list[Attempt], client: redis.Redis
) -> None:
    in_flight.add("running", plan_attempt("r", attempts[0].request, FakeEngine().info))
    before = _reads(client)
    assert CurrentAttemptCheck(records, in_flight).is_current(attempts[0])
    assert _reads(client) - before == JOBS


def test_an_attempt_that_lost_its_job_is_never_taken_for_held(
    records: JobRecords, in_flight: InFlight, attempts: list[Attempt]
) -> None:
    start_attempt(records, "j3", "another", 2)
    check = CurrentAttemptCheck(records, in_flight)
    assert [check.is_current(each) for each in attempts] == [number != 3 for number in range(JOBS)]


def test_a_job_that_is_lost_after_the_answer_is_found_lost_once_the_answer_is_old(
    records: JobRecords, in_flight: InFlight, attempts: list[Attempt], now: list[float]
) -> None:
    check = CurrentAttemptCheck(records, in_flight)
    assert check.is_current(attempts[0])
    start_attempt(records, "j0", "another", 2)
    now[0] += MAX_AGE_S  # as on a host that was frozen
    assert not check.is_current(attempts[0])
    assert check.is_current(attempts[1])


def test_a_damaged_record_fails_only_its_own_job(
    records: JobRecords, in_flight: InFlight, attempts: list[Attempt], client: redis.Redis
) -> None:
    client.set(records.key("j1"), "no record")
    check = CurrentAttemptCheck(records, in_flight)
    assert check.is_current(attempts[0])
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        check.is_current(attempts[1])
