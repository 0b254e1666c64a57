"""Messages whose id another job has, or had before, touch no job but their own."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import redis
from celery import Celery

from imagefleet import Client, Job, State
from imagefleet.shared.jobs.celery_message import TASK_NAME, job_message, task_arguments
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_arguments import MESSAGE_VERSION, unpack
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.hostile_messages import encode, with_body
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until


class PlainCelery:
    """A producer that sends messages with Celery alone, which creates no record."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._queue = celery_url(url), f"{namespace}.default.native"

    def send(self, job_id: str, arguments: Mapping[str, Any], **options: Any) -> None:
        with Celery(broker=self._url, set_as_current=False) as app:
            app.send_task(
                TASK_NAME,
                kwargs=arguments,
                task_id=job_id,
                queue=self._queue,
                priority=3,
                **options,
            )


@pytest.fixture
def celery(redis_server: LocalRedisServer, namespace: str) -> PlainCelery:
    return PlainCelery(redis_server.url, namespace)


def test_a_job_with_the_id_of_an_expired_message_runs_in_the_same_worker(
    start: StartWorker, producer: Client, celery: PlainCelery
) -> None:
    celery.send("j", {"prompt": "expired long ago"}, expires=-10)
    worker = start()
    worker.await_log("Discarding revoked task: imagefleet.render[j]")
    job = producer.submit("a dog", id="j")
    assert finish(producer, [job]) == {State.SUCCEEDED}


FOREIGN: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "valid": ({"prompt": "a stranger", "seed": 1}, {}),
    "broken": ({"version": 1, "request": {"prompt": "a stranger", "seed": -1}}, {}),
    "without a prompt": ({"colour": "red"}, {}),
    "expired": ({"prompt": "a stranger", "seed": 1}, {"expires": -10}),
    "of another seed": ({"prompt": "a victim"}, {}),
}
"""Arguments and options of messages of plain Celery."""


def _is_over(worker: Worker, producer: Client, kind: str) -> bool:
    if kind == "expired":
        return "Discarding revoked task" in worker.output()
    return bool(producer.dead_letters.read())


def _check_untouched(victim: Job, state: State) -> None:
    status = victim.status()
    assert (status.state, status.request.prompt, status.error) == (state, "a victim", None)
    assert status.deliveries <= 1


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_message_of_plain_celery_leaves_a_queued_job_with_its_id_alone(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    namespace: str,
    celery: PlainCelery,
    kind: str,
) -> None:
    victim = producer.submit("a victim", id=namespace)  # Celery's key has no namespace
    queue = list_key(f"{namespace}.default.native", 3)
    message = str(client.rpop(queue))
    arguments, options = FOREIGN[kind]
    celery.send(victim.id, arguments, **options)
    worker = start()
    until(lambda: _is_over(worker, producer, kind))
    assert finish(producer, [producer.submit("behind it")]) == {State.SUCCEEDED}
    _check_untouched(victim, State.QUEUED)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    assert not client.exists(f"celery-task-meta-{victim.id}")
    client.lpush(queue, message)
    assert finish(producer, [victim]) == {State.SUCCEEDED}
    _check_untouched(victim, State.SUCCEEDED)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_message_of_plain_celery_leaves_a_running_job_with_its_id_alone(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    namespace: str,
    celery: PlainCelery,
    kind: str,
) -> None:
    worker = start(IMAGEFLEET_MODEL="fake:seconds=3,capacity=4")
    victim = producer.submit("a victim", id="victim", num_inference_steps=2)
    until(lambda: victim.status().state is State.RUNNING)
    arguments, options = FOREIGN[kind]
    celery.send("victim", arguments, **options)
    assert finish(producer, [victim]) == {State.SUCCEEDED}
    until(lambda: _is_over(worker, producer, kind))
    _check_untouched(victim, State.SUCCEEDED)
    until(lambda: not client.keys(f"{namespace}:claims:*"))


def test_a_message_of_plain_celery_with_other_parameters_than_an_ended_job_is_a_dead_letter(
    start: StartWorker, producer: Client, celery: PlainCelery
) -> None:
    victim = producer.submit("a victim", id="victim")
    start()
    assert finish(producer, [victim]) == {State.SUCCEEDED}
    celery.send("victim", {"prompt": "a stranger"})
    [letter] = until(producer.dead_letters.read)
    assert letter.reason == "the id 'victim' is in use for a job with other parameters"
    _check_untouched(victim, State.SUCCEEDED)


def _record_of_a_dead_worker(client: redis.Redis, namespace: str, *, tolerant: bool) -> None:
    """A worker of another release has created the record of the waiting message, and died."""
    message = str(client.lindex(list_key(f"{namespace}.default.native", 3), 0))
    request = unpack(task_arguments(message), "j", tolerant=tolerant).model_dump(mode="json")
    client.hset(
        f"{namespace}:job:j",
        mapping={
            "state": "running",
            "attempt": "dead/1.000000",
            "request": json.dumps(request),
            "submitted_at": "1.5",
        },
    )


def test_a_message_of_plain_celery_is_recognized_in_the_spelling_of_another_release(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, celery: PlainCelery
) -> None:
    celery.send("j", {"prompt": "a cat", "num_inference_steps": 4})
    _record_of_a_dead_worker(client, namespace, tolerant=False)
    start()
    assert finish(producer, [producer.get("j")]) == {State.SUCCEEDED}
    assert not producer.dead_letters.read()


def test_a_message_of_plain_celery_that_only_another_release_accepts_fails_its_own_job(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, celery: PlainCelery
) -> None:
    celery.send("j", {"prompt": "a cat\x85", "num_inference_steps": 4})
    _record_of_a_dead_worker(client, namespace, tolerant=True)
    start()
    assert finish(producer, [producer.get("j")]) == {State.FAILED}
    error = producer.get("j").status().error
    assert error is not None
    assert error.message.startswith("prompt='a cat\\x85'")
    assert not producer.dead_letters.read()


def _newer(client: redis.Redis, namespace: str, job: Job) -> str:
    """Replace the message of a waiting job by one that only a newer worker can read."""
    queue = list_key(f"{namespace}.default.native", 3)
    arguments = {"version": MESSAGE_VERSION + 1, "request": {"prompt": "a cat"}}
    newer = encode(with_body(str(client.rpop(queue)), arguments), job.id)
    client.lpush(queue, newer)
    return newer


def test_a_newer_message_of_a_deleted_job_does_not_fail_the_job_that_has_its_id(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    deleted = producer.submit("a cat", id="j")
    _newer(client, namespace, deleted)
    worker = start(IMAGEFLEET_NEWER_MESSAGE_S="3600")
    until(lambda: client.zcard(f"{namespace}:later") == 1)
    assert deleted.status().retry_at is not None
    deleted.cancel()
    deleted.delete()
    worker.freeze()
    job = producer.submit("a dog", id="j")
    message = client.rpop(list_key(f"{namespace}.default.native", 3))
    [entry] = client.zrange(f"{namespace}:later", 0, -1)
    client.zadd(f"{namespace}:later", {str(entry): 1})
    worker.thaw()
    worker.await_log("a message of job j is dropped: the job was deleted")
    status = job.status()
    assert (status.state, status.retry_at, status.deliveries) == (State.QUEUED, None, 0)
    client.lpush(list_key(f"{namespace}.default.native", 3), str(message))
    assert finish(producer, [job]) == {State.SUCCEEDED}
    assert not producer.dead_letters.read()
    assert not client.zcard(f"{namespace}:later")


def test_a_dead_letter_whose_record_expired_is_redriven_whatever_spelling_its_record_had(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    queue = list_key(f"{namespace}.default.native", 3)
    request = JobRequest.parse({"prompt": "a cat", "seed": 1})
    message = job_message("j", request, queue, stored="the spelling of another release")
    letters = DeadLetters(client, namespace)
    letters.add(queue, message, code="device_error", reason="no luck", deliveries=2)
    [letter] = letters.read()
    assert letters.redrive(letter) is State.QUEUED
    start()
    until(lambda: client.exists(f"{namespace}:job:j"))
    assert finish(producer, [producer.get("j")]) == {State.SUCCEEDED}
