"""On which host a job runs and failed: what records, callbacks, letters, logs and views say."""

import json
import re
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from imagefleet import Client, Job
from imagefleet.producer.commands.cli import main
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.fleet_status import FleetReader
from imagefleet.shared.jobs.host_failures import failure_keys
from imagefleet.shared.jobs.model import JobError, State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import dead_letter_contents_key, job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.worker_names import host_of, worker_of
from imagefleet.shared.redis_client.lanes import Lanes
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until
from tests.support.receiver import Receiver
from tests.support.records import start_attempt

_EVENTS = ["started", "succeeded", "failed"]


def _worker_name(producer: Client) -> str:
    [status] = until(producer.fleet.read).workers
    return status.worker


def _lines_about(output: str, job: Job) -> list[dict[str, Any]]:
    """Return the JSON lines that name a job in their message, or in their fields."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line for line in lines if job.id in json.dumps(line)]


def test_records_callbacks_letters_and_log_lines_name_worker_and_job(
    start: StartWorker, producer: Client, settings: dict[str, str]
) -> None:
    with Receiver() as receiver:
        worker = start(
            IMAGEFLEET_LOG_FORMAT="json",
            IMAGEFLEET_MAX_RETRIES="0",
            IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1/32",
        )
        asked: dict[str, Any] = {"callback_url": receiver.url, "callback_events": _EVENTS}
        good = producer.submit("good", id="good-job", **asked)
        assert finish(producer, [good]) == {State.SUCCEEDED}  # so that each has its own batch
        bad = producer.submit("this one [fail]s", id="bad-job", **asked)
        assert finish(producer, [bad]) == {State.FAILED}
        bodies = [json.loads(each.body) for each in receiver.wait_for(4)]
    name = _worker_name(producer)
    assert {job.status().worker for job in (good, bad)} == {name}
    assert [body["data"]["worker"] for body in bodies] == [name] * 4
    [letter] = producer.dead_letters.read()
    assert (letter.worker, letter.job_id) == (name, bad.id)
    for command in (["jobs"], ["status", bad.id], ["dead-letters", "list"]):
        assert name in CliRunner(env=settings).invoke(main, command).output, command
    shown = CliRunner(env=settings).invoke(main, ["fleet"]).output
    assert f"failed attempts on {host_of(name)} in the last hour: device_error 1" in shown
    assert worker.terminate() == 0
    for job, words in ((good, ("received", "succeeded in")), (bad, ("received", "raised"))):
        lines = _lines_about(worker.output(), job)
        assert {(line.get("job_id"), line.get("worker")) for line in lines} == {(job.id, name)}
        for word in words:
            assert any(word in line["message"] for line in lines), word


def test_lines_of_text_name_worker_and_job(start: StartWorker, producer: Client) -> None:
    worker = start(IMAGEFLEET_MAX_RETRIES="0")
    job = producer.submit("this one [fail]s")
    assert finish(producer, [job]) == {State.FAILED}
    name = _worker_name(producer)
    assert worker.terminate() == 0
    about = [line for line in worker.output().splitlines() if f"[{job.id}]" in line]
    assert {"received", "raised"} <= set(re.findall("received|raised", "\n".join(about)))
    assert [line for line in about if not line.endswith(f"[job_id={job.id} worker={name}]")] == []


def test_retries_and_failures_are_counted_by_host(start: StartWorker, producer: Client) -> None:
    start()
    bad = producer.submit_many([f"{i} [fail]s" for i in range(2)])
    finish(producer, bad)
    host = host_of(_worker_name(producer))
    failures = producer.fleet.read().failures
    assert failures == {host: {"device_error": sum(1 + job.status().retries for job in bad)}}


def test_a_record_without_a_worker_names_that_of_its_attempt(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    start()
    job = producer.submit("an older worker writes only the attempt")
    assert finish(producer, [job]) == {State.SUCCEEDED}
    name = _worker_name(producer)
    client.hdel(job_key(namespace, job.id), "worker")
    assert job.status().worker == name


def test_workers_of_the_last_release_can_read_a_letter(client: redis.Redis, namespace: str) -> None:
    letters = DeadLetters(client, namespace)
    added = letters.add("q", "m", code="c", reason="why", deliveries=1, worker="a-host:1:ab")
    [text] = client.hvals(dead_letter_contents_key(namespace))
    known = {"id", "job_id", "code", "reason", "at", "deliveries", "list_key", "message"}
    assert set(json.loads(text)) == known  # release 0.1.0 refuses others
    assert json.loads(text)["reason"] == "why [worker a-host:1:ab]"
    assert letters.read() == [added]
    assert (added.reason, added.worker) == ("why", "a-host:1:ab")


@pytest.mark.parametrize(
    ("attempt", "worker", "host"),
    [
        ("tpu-3:17:ab12cd/1.000000", "tpu-3:17:ab12cd", "tpu-3"),
        ("a::b:17:ab/1.0", "a::b:17:ab", "a::b"),
        ("a", "", ""),
        ("fake-worker/1.0", "fake-worker", "fake-worker"),
    ],
)
def test_an_attempt_says_its_worker_and_its_host(attempt: str, worker: str, host: str) -> None:
    assert (worker_of(attempt), host_of(worker_of(attempt))) == (worker, host)


def test_a_count_that_is_no_hash_costs_no_job(client: redis.Redis, namespace: str) -> None:
    records = JobRecords(client, namespace, retention_s=3600)
    now, _ = client.time()
    damaged, later = failure_keys(namespace, now + 600)[:2]
    client.mset({damaged: "x", later: "x"})
    records.submit([("j", JobRequest.parse({"prompt": "a"}))])
    start_attempt(records, "j", "a-host:1:ab/1.0")
    assert records.fail("j", "a-host:1:ab/1.0", JobError(code="c", message="m"), None).happened
    assert FleetReader(Lanes.single(client, namespace)).read().failures == {}
