"""Prompts that fail everywhere, and hosts on which everything fails, with real worker processes."""

from pathlib import Path

import redis

from imagefleet import Client, Job
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until


def test_prompts_that_fail_on_every_host_fail_and_quarantine_none(
    start: StartWorker, producer: Client
) -> None:
    workers = [start(), start()]
    until(lambda: len(producer.fleet.read().workers) == len(workers))
    names = {status.worker for status in producer.fleet.read().workers}
    bad = producer.submit_many([f"{number} [fail]s" for number in range(40)])
    good = producer.submit_many([f"good {number}" for number in range(8)])
    assert finish(producer, good) == {State.SUCCEEDED}
    assert finish(producer, bad) == {State.FAILED}
    for status in [job.status() for job in bad]:
        assert status.error is not None
        assert status.error.code == "device_error"
        assert "told to fail" in status.error.message
        assert {each.worker for each in status.failures} == names  # the second try went elsewhere
        assert all(name in status.error.message for name in names)
    assert {letter.code for letter in producer.dead_letters.read()} == {"device_error"}
    assert all("quarantined" not in worker.output() for worker in workers)


def test_a_host_that_fails_what_others_make_is_quarantined_and_fails_no_job(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    failing = tmp_path / "failing"
    # It passes its health check, so that only the success of others proves that it is to blame.
    bad = start(
        IMAGEFLEET_MODEL=f"fake:seconds=0.02,capacity=8,failing_jobs={failing}",
        IMAGEFLEET_QUARANTINE_S="1",
    )
    until(lambda: producer.fleet.read().workers)
    [name] = [status.worker for status in producer.fleet.read().workers]
    start()
    until(lambda: len(producer.fleet.read().workers) == 2)
    failing.touch()
    jobs: list[Job] = []

    def is_out() -> bool:
        more = producer.submit_many([f"prompt {number}" for number in range(16)])
        jobs.extend(more)
        assert finish(producer, more) == {State.SUCCEEDED}
        return bad.process.poll() is not None

    until(is_out)
    assert bad.wait() == ExitCode.UNAVAILABLE
    assert "succeeded elsewhere" in bad.output()
    failures = [each for job in jobs for each in job.status().failures]
    assert {each.worker for each in failures} == {name}
    assert {each.code for each in failures} == {"device_error", "devices_failed"}
    assert producer.dead_letters.read() == []


def test_one_worker_alone_tries_a_failing_prompt_three_times(
    start: StartWorker, producer: Client
) -> None:
    start()
    bad = producer.submit("this one [fail]s")
    assert finish(producer, [bad]) == {State.FAILED}
    status = bad.status()
    assert status.error is not None
    assert "it failed alone 3 times on devices that pass their health check" in status.error.message
    assert [each.code for each in status.failures] == ["device_error"] * 2
    assert {each.worker for each in status.failures} == {status.worker}


def test_a_redriven_job_has_no_failures(start: StartWorker, producer: Client) -> None:
    start(IMAGEFLEET_MAX_RETRIES="1").await_log("ready after")
    bad = producer.submit("this one [fail]s")
    assert finish(producer, [bad]) == {State.FAILED}
    assert len(bad.status().failures) == 1
    [letter] = producer.dead_letters.read()
    producer.dead_letters.redrive(letter)
    until(lambda: producer.dead_letters.read())
    assert len(bad.status().failures) == 1


def test_damaged_failures_cost_no_job(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    job = producer.submit("good")
    client.hset(job_key(namespace, job.id), "failures", "no JSON\n{}\n\x00")
    start()
    assert finish(producer, [job]) == {State.SUCCEEDED}
    assert job.status().failures == ()
