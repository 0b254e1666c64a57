"""Ends of jobs are counted for an hour, and the latest failed jobs are listed."""

import pytest
import redis

from imagefleet.shared.jobs.model import JobError
from imagefleet.shared.jobs.recent_ends import RecentEnds
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import job_ends_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.lanes import Lanes
from tests.support.records import result_of_one_image, start_attempt

HALF_AN_HOUR = 1_800


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3_600)


def _start(records: JobRecords, job_id: str) -> str:
    records.submit([(job_id, JobRequest.parse({"prompt": "a"}))])
    attempt = f"host:1:a/{job_id}"
    start_attempt(records, job_id, attempt)
    return attempt


def _fail(records: JobRecords, job_id: str, code: str) -> None:
    attempt = _start(records, job_id)
    records.fail(job_id, attempt, JobError(code=code, message="m"), None)


def test_ends_are_counted_by_state_and_code_and_failed_jobs_listed(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    for job_id in ("a", "b"):
        records.succeed(job_id, _start(records, job_id), result_of_one_image(), None)
    for job_id, code in (("c", "expired"), ("d", "worker_error"), ("e", "expired")):
        _fail(records, job_id, code)
    ends = RecentEnds(Lanes.single(client, namespace))
    expected = {"succeeded": 2, "failed:expired": 2, "failed:worker_error": 1}
    assert ends.counts(HALF_AN_HOUR) == expected
    assert set(ends.failed(10)) == {"c", "d", "e"}
    assert len(ends.failed(2)) == 2
    for key in client.keys(f"{namespace}:ends:[0-9]*"):
        assert 0 < client.ttl(key) <= 4_500
        period = int(str(key).rpartition(":")[2])
        client.rename(key, job_ends_key(namespace, period - 4))  # as if they had been earlier
    assert ends.counts(HALF_AN_HOUR) == {}
    assert ends.counts(3_600) == expected


def test_keys_of_another_type_and_damaged_counts_cost_no_job(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    now, _ = client.time()
    for period in (now // 600, now // 600 + 1):
        client.set(job_ends_key(namespace, period), "x")
    client.set(f"{namespace}:ends:failed", "x")
    _fail(records, "a", "expired")
    ends = RecentEnds(Lanes.single(client, namespace))
    assert (ends.counts(HALF_AN_HOUR), ends.failed(10)) == ({}, [])
    client.hset(
        job_ends_key(namespace, now // 600 - 1), mapping={"succeeded": "x", "failed:a": "7"}
    )
    assert ends.counts(HALF_AN_HOUR) == {"failed:a": 7}
