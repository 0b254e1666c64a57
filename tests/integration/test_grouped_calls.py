"""Ends of jobs that share a round trip: each is whole by itself, and no thread waits in vain."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import Acknowledgement, TransitionResult
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.grouped_calls import Gather
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.records import result_of_one_image, start_attempt

JOBS = 8
LONG_S = 60.0
"""Longer than any test may wait."""
ALL_EXPECTED = Gather(expected=lambda: JOBS, max_wait_s=LONG_S)


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return _running_jobs(client, namespace)


def _running_jobs(client: redis.Redis, namespace: str) -> JobRecords:
    """Return records of running jobs, each with a claim of its message."""
    records = JobRecords(client, namespace, retention_s=3600)
    for number in range(JOBS):
        records.submit([(f"j{number}", JobRequest.parse({"prompt": "a"}))])
        start_attempt(records, f"j{number}", f"t{number}")
        client.hset(f"{namespace}:claims", f"tag{number}", f"queue\0message {number}")
    return records


def _succeed(records: JobRecords, namespace: str, number: int, gather: Gather) -> TransitionResult:
    end = Acknowledgement(
        claims=f"{namespace}:claims",
        deliveries=f"{namespace}:deliveries",
        tag=f"tag{number}",
        result_key=f"{namespace}:result{number}",
        result=f"result {number}",
    )
    return records.succeed(
        f"j{number}",
        f"t{number}",
        result_of_one_image(),
        None,
        acknowledgement=end,
        gather=gather,
    )


def _in_threads(call: Callable[[int], TransitionResult]) -> list[TransitionResult | Exception]:
    """Return what `call` returned or raised for each job, each in a thread of its own."""

    def result(number: int) -> TransitionResult | Exception:
        try:
            return call(number)
        except redis.RedisError as error:
            return error

    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(result, range(JOBS)))


def _reads(client: redis.Redis) -> int:
    return int(client.info("stats")["total_reads_processed"])


def test_the_ends_of_a_batch_share_one_round_trip(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    before = _reads(client)
    results = _in_threads(lambda number: _succeed(records, namespace, number, ALL_EXPECTED))
    # One for the ends. A new connection says hello, and this question is one, too.
    assert _reads(client) - before <= 4
    assert all(isinstance(each, TransitionResult) and each.acknowledged for each in results)
    assert {each.attempt for each in results if isinstance(each, TransitionResult)} == {
        f"t{number}" for number in range(JOBS)
    }
    states = records.states([f"j{number}" for number in range(JOBS)])
    assert states == JOBS * [State.SUCCEEDED]
    assert client.mget([f"{namespace}:result{number}" for number in range(JOBS)]) == [
        f"result {number}" for number in range(JOBS)
    ]
    assert not client.exists(f"{namespace}:claims")


def test_a_server_that_does_not_know_the_script_any_more_records_all(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    client.script_flush()
    results = _in_threads(lambda number: _succeed(records, namespace, number, ALL_EXPECTED))
    assert all(isinstance(each, TransitionResult) and each.acknowledged for each in results)


def test_a_damaged_record_fails_no_other_job_of_its_group(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    client.set(records.key("j3"), "no record")
    results = _in_threads(lambda number: _succeed(records, namespace, number, ALL_EXPECTED))
    assert isinstance(results.pop(3), redis.ResponseError)
    assert all(isinstance(each, TransitionResult) and each.acknowledged for each in results)


def test_a_job_that_another_attempt_holds_changes_no_other_answer(
    records: JobRecords, namespace: str
) -> None:
    start_attempt(records, "j5", "another", 2)
    results = _in_threads(lambda number: _succeed(records, namespace, number, ALL_EXPECTED))
    happened = [isinstance(each, TransitionResult) and each.happened for each in results]
    assert happened == [number != 5 for number in range(JOBS)]


@pytest.mark.parametrize("expected", [1, 2])
def test_an_end_does_not_wait_for_jobs_that_never_come(
    records: JobRecords, namespace: str, expected: int
) -> None:
    wait_s = LONG_S if expected == 1 else 0.05
    gather = Gather(expected=lambda: expected, max_wait_s=wait_s)
    assert _succeed(records, namespace, 0, gather).acknowledged


def test_each_end_is_recorded_once_if_the_server_is_killed_under_a_group(tmp_path: Path) -> None:
    """The group is sent while the server is dead; another one is sent whose answers are lost."""
    with LocalRedisServer(tmp_path) as server:
        client = connect(server.url, retries=RETRY_FOREVER)
        records = _running_jobs(client, "n")
        for _ in range(2):  # the second time all ends are there already
            server.kill()
            waiting = Gather(expected=lambda: JOBS, max_wait_s=LONG_S)
            with ThreadPoolExecutor(JOBS) as pool:
                futures = [
                    pool.submit(_succeed, records, "n", number, waiting) for number in range(JOBS)
                ]
                until(lambda: threading.active_count() > JOBS)
                server.start()
                results = [future.result(timeout=LONG_S) for future in futures]
            assert {each.attempt for each in results} == {f"t{number}" for number in range(JOBS)}
        assert not any(each.happened for each in results)
        assert client.hgetall("n:ends") == {"succeeded": str(JOBS)}
        assert not client.exists("n:claims")
