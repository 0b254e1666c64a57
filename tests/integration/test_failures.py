"""Failing and hung devices, lost leases and transient failures, with real worker processes."""

from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import redis

from imagefleet import Client, Job
from imagefleet.shared.errors import JobFailed
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until
from tests.support.s3 import (
    BUCKET,
    Fault,
    FaultyS3,
    SignedS3,
    error,
    pass_on,
    signed_s3,
)


def _running(jobs: list[Job]) -> bool:
    return all(job.status().state is State.RUNNING for job in jobs)


def test_hung_devices_end_their_worker_and_its_jobs_run_elsewhere(
    start: StartWorker, producer: Client
) -> None:
    hung = start(IMAGEFLEET_WATCHDOG_S="1", IMAGEFLEET_MODEL="fake:capacity=4")
    hanging = producer.submit("this one [hang]s")
    until(lambda: _running([hanging]))
    waiting = producer.submit_many(["a", "b"])
    assert hung.wait() == ExitCode.IOERR
    assert hanging.status().state is State.QUEUED
    hanging.cancel()
    start()
    assert finish(producer, waiting) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in waiting} == {1}


def test_a_prompt_that_hangs_every_device_is_given_up_and_fails_no_other_job(
    start: StartWorker, producer: Client
) -> None:
    hanging = producer.submit("this one [hang]s")
    others = producer.submit_many([f"good {i}" for i in range(7)])
    bounds = {"IMAGEFLEET_WATCHDOG_S": "1", "IMAGEFLEET_MAX_DELIVERIES": "3"}
    for _ in range(3):
        assert start(**bounds).wait() == ExitCode.IOERR
    start(IMAGEFLEET_MAX_DELIVERIES="3")  # slow is not hung
    assert finish(producer, others) == {State.SUCCEEDED}
    with pytest.raises(JobFailed, match="3 workers died") as failed:
        hanging.result(timeout=900)
    assert failed.value.failure_code == "too_many_deliveries"
    [letter] = producer.dead_letters.read()
    assert (letter.job_id, letter.code) == (hanging.id, "too_many_deliveries")
    failures = hanging.status().failures
    assert [each.code for each in failures] == ["worker_died"] * 3
    assert all(each.worker in letter.reason for each in failures)


def test_a_worker_with_failing_devices_takes_no_work_until_they_are_healthy(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    failing_flag = tmp_path / "failing"
    worker = start(IMAGEFLEET_MODEL=f"fake:failing={failing_flag}")
    assert finish(producer, [producer.submit("while the devices are healthy")]) == {State.SUCCEEDED}
    failing_flag.touch()
    jobs = producer.submit_many([f"prompt {i}" for i in range(50)])
    worker.await_log("quarantined")
    until(lambda: all(job.status().state is State.QUEUED for job in jobs))
    assert not producer.dead_letters.read()
    failing_flag.unlink()
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert max(job.status().deliveries for job in jobs) == 2
    assert {job.status().retries for job in jobs} == {0}


def test_a_quarantined_worker_leaves_the_queue_to_healthy_workers(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    failing_flag = tmp_path / "failing"
    first = start(IMAGEFLEET_MODEL=f"fake:failing={failing_flag}", IMAGEFLEET_QUARANTINE_S="1")
    first.await_log("ready after")
    failing_flag.touch()
    jobs = producer.submit_many([f"prompt {i}" for i in range(50)])
    first.await_log("quarantined")
    start()
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert first.wait() == ExitCode.UNAVAILABLE


def test_a_job_that_fails_healthy_devices_is_retried_twice_and_then_a_dead_letter(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_LEASE_S="600")  # it looks for what is due every 150 s
    job = producer.submit("this one [fail]s")
    until(lambda: job.status().retry_at)
    start()
    with pytest.raises(JobFailed) as failed:
        job.result(timeout=900)
    assert failed.value.failure_code == "device_error"
    status = job.status()
    assert (status.retries, status.retry_at, status.deliveries) == (2, None, 1)
    [letter] = producer.dead_letters.read()
    assert (letter.job_id, letter.code, letter.deliveries) == (job.id, "device_error", 3)
    assert job.id in letter.message


def test_a_retry_waits_in_redis_and_survives_its_worker(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    with signed_s3() as store, FaultyS3(pass_on(store)) as door:
        more = {
            **store.credentials.environment(),
            "IMAGEFLEET_STORAGE_URL": f"s3://{BUCKET}?endpoint_url={door.endpoint_url}",
            "IMAGEFLEET_STORAGE_RETRY_S": "0",
        }
        first = start(**more, IMAGEFLEET_LEASE_S="600")  # it looks for what is due every 150 s
        first.await_log("ready after")
        door.fault = _fail_only_jobs(store, error(503, "SlowDown"))
        job = producer.submit("stored at the second try")
        until(lambda: client.zcard(f"{namespace}:later"))
        assert job.status().state is State.QUEUED
        first.kill()
        door.fault = pass_on(store)
        start(**more)
        assert finish(producer, [job]) == {State.SUCCEEDED}
    assert job.status().retries == 1
    assert not client.exists(f"{namespace}:later")


def test_a_worker_that_starts_waits_for_a_store_that_is_unavailable(start: StartWorker) -> None:
    with signed_s3() as store, FaultyS3(error(503, "SlowDown")) as door:
        url = f"s3://{BUCKET}?endpoint_url={door.endpoint_url}"
        worker = start(**store.credentials.environment(), IMAGEFLEET_STORAGE_URL=url)
        worker.await_log("the check of the storage failed, retry in")
        door.fault = pass_on(store)
        worker.await_log("ready after")


def test_a_store_that_denies_one_job_fails_it_without_a_retry(
    start: StartWorker, producer: Client
) -> None:
    with signed_s3() as store, FaultyS3(pass_on(store)) as door:
        url = f"s3://{BUCKET}?endpoint_url={door.endpoint_url}"
        worker = start(**store.credentials.environment(), IMAGEFLEET_STORAGE_URL=url)
        worker.await_log("ready after")
        door.fault = _fail_only_jobs(store, error(403, "AccessDenied"))
        job = producer.submit("nothing may be stored under jobs/")
        with pytest.raises(JobFailed) as failed:
            job.result(timeout=900)
    assert failed.value.failure_code == "storage_denied"
    assert job.status().retries == 0
    [letter] = producer.dead_letters.read()
    assert (letter.job_id, letter.code) == (job.id, "storage_denied")


def test_a_store_that_denies_everything_quarantines_the_worker_and_fails_no_job(
    start: StartWorker, producer: Client
) -> None:
    with signed_s3() as store, FaultyS3(pass_on(store)) as door:
        url = f"s3://{BUCKET}?endpoint_url={door.endpoint_url}"
        worker = start(**store.credentials.environment(), IMAGEFLEET_STORAGE_URL=url)
        worker.await_log("ready after")
        door.fault = error(403, "InvalidAccessKeyId")
        jobs = producer.submit_many([f"prompt {i}" for i in range(40)])
        worker.await_log("quarantined")
        until(lambda: all(job.status().state is State.QUEUED for job in jobs))
        door.fault = pass_on(store)
        assert finish(producer, jobs) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}
    assert producer.dead_letters.read() == []


def _fail_only_jobs(store: SignedS3, fault: Fault) -> Fault:
    """Fail the keys of jobs only; the store itself passes its health check."""

    def choose(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        (fault if "/jobs/" in door.path else pass_on(store))(door, body, number)

    return choose


def test_a_worker_that_lost_its_lease_drops_its_batch_and_takes_new_work(
    start: StartWorker, producer: Client
) -> None:
    frozen = start(IMAGEFLEET_MODEL="fake:seconds=3.75,capacity=4")
    jobs = producer.submit_many(["a", "b"], num_inference_steps=100)
    until(lambda: _running(jobs))
    frozen.freeze()
    second = start(IMAGEFLEET_MODEL="fake:capacity=4")
    assert finish(producer, jobs) == {State.SUCCEEDED}
    second.kill()
    frozen.thaw()
    frozen.await_log("the lease ran out")
    extra = producer.submit("after the thaw", num_inference_steps=4)
    assert finish(producer, [extra], timeout=900) == {State.SUCCEEDED}  # the batch was 375 s long


def test_a_cancelled_job_is_dropped_between_two_steps(start: StartWorker, producer: Client) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=0.25,capacity=1")
    job = producer.submit("cancelled", num_inference_steps=100)
    until(lambda: job.status().step > 2)
    job.cancel()
    until(lambda: job.status().done)
    status = job.status()
    assert status.state is State.CANCELLED
    assert status.step < status.steps
    follower = producer.submit("next")
    assert finish(producer, [follower]) == {State.SUCCEEDED}
    assert (follower.status().step, follower.status().steps) == (4, 4)


def test_a_dead_letter_can_be_redriven_and_succeeds(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    failing_flag = tmp_path / "failing"
    letters = DeadLetters(client, namespace)
    job = producer.submit("succeeds at once")
    worker = start(
        IMAGEFLEET_MODEL=f"fake:failing={failing_flag}",
        IMAGEFLEET_MAX_DELIVERIES="1",
    )
    assert finish(producer, [job]) == {State.SUCCEEDED}
    failing_flag.touch()
    failing = producer.submit("its devices were failing")
    worker.await_log("quarantined")
    failing_flag.unlink()
    assert finish(producer, [failing]) == {State.FAILED}
    [letter] = letters.read()
    assert (letter.job_id, letter.code) == (failing.id, "device_error")  # no worker died
    assert "told to fail by the file" in letter.reason
    assert letters.redrive(letter) is State.QUEUED
    assert finish(producer, [failing]) == {State.SUCCEEDED}
    assert failing.status().error is None
    assert letters.read() == []
