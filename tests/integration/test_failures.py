"""Sick devices, hung devices, lost leases, passing failures: real worker processes."""

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
    FaultyS3,
    Misdeed,
    SignedS3,
    carry,
    error,
    reply,
    signed_s3,
)


def _running(jobs: list[Job]) -> bool:
    return all(job.status().state is State.RUNNING for job in jobs)


def test_hung_devices_end_their_worker_and_the_jobs_run_elsewhere(
    start: StartWorker, producer: Client
) -> None:
    hung = start(IMAGEFLEET_WATCHDOG_S="1", IMAGEFLEET_MODEL="fake:capacity=4")
    poison = producer.submit("this one [hang]s")
    until(lambda: _running([poison]))
    waiting = producer.submit_many(["a", "b"])
    assert hung.wait() == ExitCode.IOERR
    assert poison.status().state is State.QUEUED
    poison.cancel()
    start()
    assert finish(producer, waiting) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in waiting} == {1}


def test_a_prompt_that_hangs_every_device_is_given_up_and_takes_no_mate_with_it(
    start: StartWorker, producer: Client
) -> None:
    poison = producer.submit("this one [hang]s")
    mates = producer.submit_many([f"good {i}" for i in range(7)])
    bounds = {"IMAGEFLEET_WATCHDOG_S": "1", "IMAGEFLEET_MAX_DELIVERIES": "3"}
    for _ in range(3):
        assert start(**bounds).wait() == ExitCode.IOERR
    start(IMAGEFLEET_MAX_DELIVERIES="3")  # slow is not hung
    assert finish(producer, mates) == {State.SUCCEEDED}
    with pytest.raises(JobFailed, match="3 workers died") as failed:
        poison.result(timeout=60)
    assert failed.value.failure_code == "too_many_deliveries"
    [letter] = producer.dead_letters.read()
    assert (letter.job_id, letter.code) == (poison.id, "too_many_deliveries")


def test_a_worker_with_sick_devices_takes_no_work_until_they_are_well(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    sick = tmp_path / "sick"
    worker = start(IMAGEFLEET_MODEL=f"fake:sick={sick}")
    assert finish(producer, [producer.submit("while it is well")]) == {State.SUCCEEDED}
    sick.touch()
    jobs = producer.submit_many([f"prompt {i}" for i in range(50)])
    worker.await_log("quarantined")
    until(lambda: all(job.status().state is State.QUEUED for job in jobs))
    assert not producer.dead_letters.read()
    sick.unlink()
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert max(job.status().deliveries for job in jobs) == 2
    assert {job.status().retries for job in jobs} == {0}


def test_a_sick_worker_leaves_the_queue_to_the_healthy_ones(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    sick = tmp_path / "sick"
    first = start(IMAGEFLEET_MODEL=f"fake:sick={sick}", IMAGEFLEET_QUARANTINE_S="1")
    first.await_log("ready after")
    sick.touch()
    jobs = producer.submit_many([f"prompt {i}" for i in range(50)])
    first.await_log("quarantined")
    start()
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert first.wait() == ExitCode.UNAVAILABLE


def test_a_job_whose_devices_are_well_is_tried_once_more_and_then_kept_as_a_dead_letter(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_LEASE_S="600")  # it looks for what is due every 150 s
    job = producer.submit("this one [fail]s")
    until(lambda: job.status().retry_at)
    start()
    with pytest.raises(JobFailed) as failed:
        job.result(timeout=60)
    assert failed.value.failure_code == "device_error"
    status = job.status()
    assert (status.retries, status.retry_at, status.deliveries) == (1, None, 1)
    [letter] = producer.dead_letters.read()
    assert (letter.job_id, letter.code, letter.deliveries) == (job.id, "device_error", 2)
    assert job.id in letter.message


def test_a_job_waits_for_its_next_attempt_in_redis_not_in_a_worker(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    with signed_s3() as store, FaultyS3(_pass_on(store)) as door:
        more = {
            **store.credentials.environment(),
            "IMAGEFLEET_STORAGE_URL": f"s3://{BUCKET}?endpoint_url={door.endpoint_url}",
            "IMAGEFLEET_STORAGE_RETRY_S": "0",
        }
        first = start(**more, IMAGEFLEET_LEASE_S="600")  # it looks for what is due every 150 s
        first.await_log("ready after")
        door.misdeed = _spare_all_but_jobs(store, error(503, "SlowDown"))
        job = producer.submit("stored at the second try")
        until(lambda: client.zcard(f"{namespace}:later"))
        assert job.status().state is State.QUEUED
        first.kill()
        door.misdeed = _pass_on(store)
        start(**more)
        assert finish(producer, [job]) == {State.SUCCEEDED}
    assert job.status().retries == 1
    assert not client.exists(f"{namespace}:later")


def test_a_store_that_refuses_fails_the_job_at_once_with_the_reason(
    start: StartWorker, producer: Client
) -> None:
    with signed_s3() as store, FaultyS3(_pass_on(store)) as door:
        url = f"s3://{BUCKET}?endpoint_url={door.endpoint_url}"
        worker = start(**store.credentials.environment(), IMAGEFLEET_STORAGE_URL=url)
        worker.await_log("ready after")
        door.misdeed = _spare_all_but_jobs(store, error(403, "AccessDenied"))
        job = producer.submit("nothing may be stored under jobs/")
        with pytest.raises(JobFailed) as failed:
            job.result(timeout=60)
    assert failed.value.failure_code == "storage_denied"
    assert job.status().retries == 0
    [letter] = producer.dead_letters.read()
    assert (letter.job_id, letter.code) == (job.id, "storage_denied")


def test_a_store_that_refuses_everybody_stops_the_worker_not_the_jobs(
    start: StartWorker, producer: Client
) -> None:
    with signed_s3() as store, FaultyS3(_pass_on(store)) as door:
        url = f"s3://{BUCKET}?endpoint_url={door.endpoint_url}"
        worker = start(**store.credentials.environment(), IMAGEFLEET_STORAGE_URL=url)
        worker.await_log("ready after")
        door.misdeed = error(403, "InvalidAccessKeyId")
        jobs = producer.submit_many([f"prompt {i}" for i in range(40)])
        worker.await_log("quarantined")
        until(lambda: all(job.status().state is State.QUEUED for job in jobs))
        door.misdeed = _pass_on(store)
        assert finish(producer, jobs) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}
    assert producer.dead_letters.read() == []


def _pass_on(store: SignedS3) -> Misdeed:
    return lambda door, body, _: reply(door, *carry(store.endpoint_url, door, body))


def _spare_all_but_jobs(store: SignedS3, misdeed: Misdeed) -> Misdeed:
    """What is about one key and not about the whole store."""

    def choose(door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        (misdeed if "/jobs/" in door.path else _pass_on(store))(door, body, number)

    return choose


def test_a_worker_that_lost_its_lease_drops_its_batch_and_goes_on(
    start: StartWorker, producer: Client
) -> None:
    frozen = start(IMAGEFLEET_MODEL="fake:seconds=0.75,capacity=4")
    jobs = producer.submit_many(["a", "b"], num_inference_steps=100)
    until(lambda: _running(jobs))
    frozen.freeze()
    second = start(IMAGEFLEET_MODEL="fake:capacity=4")
    assert finish(producer, jobs) == {State.SUCCEEDED}
    second.kill()
    frozen.thaw()
    frozen.await_log("the lease ran out")
    extra = producer.submit("after the thaw", num_inference_steps=4)
    assert finish(producer, [extra], timeout=60) == {State.SUCCEEDED}  # the batch was 75 s long


def test_a_cancelled_job_leaves_the_devices_between_two_steps(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=0.25,capacity=1")
    job = producer.submit("withdrawn", num_inference_steps=100)
    until(lambda: job.status().step > 2)
    job.cancel()
    until(lambda: job.status().done)
    status = job.status()
    assert status.state is State.CANCELLED
    assert status.step < status.steps
    follower = producer.submit("next")
    assert finish(producer, [follower]) == {State.SUCCEEDED}
    assert (follower.status().step, follower.status().steps) == (4, 4)


def test_a_dead_letter_can_be_redriven_and_ends_once_more(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    sick = tmp_path / "sick"
    letters = DeadLetters(client, namespace)
    job = producer.submit("killed twice, then not")
    worker = start(
        IMAGEFLEET_MODEL=f"fake:sick={sick}",
        IMAGEFLEET_MAX_DELIVERIES="1",
    )
    assert finish(producer, [job]) == {State.SUCCEEDED}
    sick.touch()
    failing = producer.submit("its devices were sick")
    worker.await_log("quarantined")
    sick.unlink()
    assert finish(producer, [failing]) == {State.FAILED}
    [letter] = letters.find([failing.id])
    assert letters.redrive(letter) is State.QUEUED
    assert finish(producer, [failing]) == {State.SUCCEEDED}
    assert failing.status().error is None
    assert letters.read() == []
