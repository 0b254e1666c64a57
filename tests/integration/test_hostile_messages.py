"""A real worker survives every message that a producer can send: each costs one message only."""

import hashlib
import json

import pytest
import redis
from celery import Celery

from imagefleet import Client
from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.jobs.celery_message import TASK_NAME, job_message
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_arguments import MESSAGE_VERSION
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.hostile_messages import (
    BROKEN_ENDS,
    HARMLESS,
    HOSTILE_ID,
    NEWER,
    REFUSED,
    REQUEST,
    Envelope,
    encode,
    envelope,
    with_arguments,
    with_body,
    with_headers,
)
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until

MAX_DELIVERIES = 4


@pytest.fixture
def worker(start: StartWorker) -> Worker:
    worker = start(IMAGEFLEET_MAX_DELIVERIES=str(MAX_DELIVERIES), IMAGEFLEET_NEWER_MESSAGE_S="10")
    worker.await_log("ready after")
    return worker


def _push(client: redis.Redis, namespace: str, message: Envelope, job_id: str = HOSTILE_ID) -> None:
    client.lpush(list_key(f"{namespace}.default.native", 3), encode(message, job_id))


def _state(producer: Client, job_id: str) -> State | None:
    try:
        return producer.get(job_id).status().state
    except UnknownJob:
        return None


def _claims(client: redis.Redis, namespace: str) -> int:
    return sum(client.hlen(key) for key in client.scan_iter(f"{namespace}:claims:*"))


def _check_worker_goes_on(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    """Check that the worker lives, does an ordinary job at once, and holds nothing."""
    assert finish(producer, [producer.submit("an ordinary job")], timeout=900) == {State.SUCCEEDED}
    assert worker.process.poll() is None
    until(lambda: not _claims(client, namespace))
    assert "the devices thread failed" not in worker.output()


def test_messages_with_useless_parts_are_done(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for at, message in enumerate(HARMLESS.values()):
        _push(client, namespace, message(), f"job-{at}")
    _check_worker_goes_on(worker, producer, client, namespace)
    states = {name: _state(producer, f"job-{at}") for at, name in enumerate(HARMLESS)}
    assert states == dict.fromkeys(HARMLESS, State.SUCCEEDED)
    assert not producer.dead_letters.read()


def test_each_hostile_message_ends_alone(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for at, message in enumerate(REFUSED.values()):
        _push(client, namespace, message(), f"job-{at}")
        if at % 4 == 0:
            _check_worker_goes_on(worker, producer, client, namespace)
    _check_worker_goes_on(worker, producer, client, namespace)

    def unfinished() -> list[str]:
        letters = DeadLetters(client, namespace).read()
        kept = {letter.job_id for letter in letters}
        sizes = [letter for letter in letters if "longer than" in letter.reason]
        return [
            name
            for at, name in enumerate(REFUSED)
            if f"job-{at}" not in kept
            and _state(producer, f"job-{at}") is not State.FAILED
            and not (name == "too long" and sizes)
        ]

    until(lambda: set(unfinished()) <= set(NEWER))
    until(lambda: not unfinished())  # the newer ones wait for newer workers
    most = max(letter.deliveries for letter in DeadLetters(client, namespace).read())
    assert most <= MAX_DELIVERIES
    _check_worker_goes_on(worker, producer, client, namespace)
    assert not client.zcard(f"{namespace}:later")


def test_a_workflow_that_breaks_costs_its_own_job_at_most(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for at, message in enumerate(BROKEN_ENDS.values()):
        _push(client, namespace, message(), f"job-{at}")
    _check_worker_goes_on(worker, producer, client, namespace)
    letters = {letter.job_id for letter in producer.dead_letters.read()}
    states = {name: _state(producer, f"job-{at}") for at, name in enumerate(BROKEN_ENDS)}
    ended = {
        name: state in (State.SUCCEEDED, State.FAILED) or f"job-{at}" in letters
        for at, (name, state) in enumerate(states.items())
    }
    assert ended == dict.fromkeys(BROKEN_ENDS, True)
    assert not client.hlen(f"{namespace}:deliveries")


def test_a_message_whose_record_is_damaged_becomes_a_dead_letter(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    client.set(f"{namespace}:job:{HOSTILE_ID}", "not a record")
    _push(client, namespace, envelope())
    client.hset(f"{namespace}:job:other", mapping={"state": "nowhere"})
    client.hset(f"{namespace}:job:empty", mapping={"state": "", "request": "{}"})
    _push(client, namespace, envelope(), "other")
    _push(client, namespace, with_headers(recorded=True), "empty")
    _check_worker_goes_on(worker, producer, client, namespace)
    letters = {letter.job_id for letter in producer.dead_letters.read()}
    assert letters == {HOSTILE_ID, "other", "empty"}


def test_a_message_that_killed_all_its_workers_is_not_opened(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    worker.freeze()
    message = encode(envelope(), HOSTILE_ID)
    digest = hashlib.sha1(message.encode()).hexdigest()
    client.hset(f"{namespace}:deliveries", digest, MAX_DELIVERIES + 1)
    client.lpush(list_key(f"{namespace}.default.native", 3), message)
    worker.thaw()
    until(lambda: producer.dead_letters.read())
    _check_worker_goes_on(worker, producer, client, namespace)
    [letter] = producer.dead_letters.read()
    assert (letter.code, letter.job_id) == ("too_many_deliveries", HOSTILE_ID)
    assert f"[{HOSTILE_ID}] received" not in worker.output()
    assert not client.hlen(f"{namespace}:deliveries")


def test_a_hostile_message_before_any_other_is_refused_by_a_worker_that_starts(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    _push(client, namespace, envelope(**{"content-type": "\ud800"}))
    _push(client, namespace, with_headers(timelimit=-1))
    worker = start()
    worker.await_log("ready after")
    _check_worker_goes_on(worker, producer, client, namespace)


def test_a_plain_celery_sender_that_gives_positional_arguments_gets_a_failed_record(
    worker: Worker, producer: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    url = celery_url(redis_server.url)
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        sent = app.send_task(
            TASK_NAME, args=["a red star"], queue=f"{namespace}.default.native", priority=3
        )
        with pytest.raises(MessageRejected, match="keyword arguments"):
            sent.get(timeout=900)
    until(lambda: _state(producer, sent.id) is State.FAILED)
    error = producer.get(sent.id).status().error
    assert error is not None
    assert error.code == "message_rejected"
    assert "keyword arguments" in error.message
    assert [letter.job_id for letter in producer.dead_letters.read()] == [sent.id]


@pytest.mark.parametrize(
    ("task", "task_id", "sentence"),
    [("another.task", None, "takes only the task"), (TASK_NAME, "a/b", "must be 1 to 128 letters")],
)
def test_who_waits_for_a_task_that_can_be_no_job_is_told(
    worker: Worker,
    producer: Client,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
    task: str,
    task_id: str | None,
    sentence: str,
) -> None:
    url, queue = celery_url(redis_server.url), f"{namespace}.default.native"
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        sent = app.send_task(task, task_id=task_id, queue=queue, priority=3)
        with pytest.raises(Exception, match=sentence):
            sent.get(timeout=900)
    assert 0 < client.ttl(f"celery-task-meta-{sent.id}") <= 86_400
    assert not client.exists(f"{namespace}:job:{sent.id}")
    assert len(producer.dead_letters.read()) == 1


def test_a_task_of_another_name_changes_no_result_of_its_id(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
) -> None:
    """Neither of a job, nor of a task that another program runs."""
    url, queue = celery_url(redis_server.url), f"{namespace}.default.native"
    job = producer.submit("a job", model="nobodys")  # before there is an offer
    client.set("celery-task-meta-elsewhere", '{"status": "STARTED"}')
    with Celery(broker=url, set_as_current=False) as app:
        for task_id in (job.id, "elsewhere"):
            app.send_task("another.task", task_id=task_id, queue=queue, priority=3)
        app.send_task("another.task", task_id="unwanted", queue=queue, ignore_result=True)
    worker = start()
    until(lambda: len(producer.dead_letters.read()) == 3)
    _check_worker_goes_on(worker, producer, client, namespace)
    assert client.get("celery-task-meta-elsewhere") == '{"status": "STARTED"}'
    assert not client.exists(f"celery-task-meta-{job.id}", "celery-task-meta-unwanted")


def test_a_refused_job_of_plain_celery_leaves_a_failed_record_with_what_is_readable(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    request = {"prompt": "a circle", "negativ_prompt": "x", "seed": -1, "num_inference_steps": 3}
    _push(client, namespace, with_arguments([], {"version": 1, "request": request}))
    until(lambda: _state(producer, HOSTILE_ID) is State.FAILED)
    status = producer.get(HOSTILE_ID).status()
    assert (status.request.prompt, status.request.num_inference_steps) == ("a circle", 3)
    assert status.error is not None
    assert status.error.code == "invalid_request"
    assert client.ttl(f"{namespace}:job:{HOSTILE_ID}") > 0


def test_a_newer_message_waits_for_a_newer_worker_until_its_time_is_over(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    job = producer.submit("a")
    client.delete(*client.keys(f"{namespace}.*"))
    newer = with_body(
        job_message(job.id, job.status().request, "q"),
        {"version": MESSAGE_VERSION + 1, "request": REQUEST},
    )
    _push(client, namespace, newer, job.id)
    worker = start(IMAGEFLEET_NEWER_MESSAGE_S="8")
    until(lambda: client.zcard(f"{namespace}:later") == 1)
    assert not client.exists(f"{namespace}:deliveries"), "no worker died with it"
    assert job.status().state is State.QUEUED
    until(lambda: job.status().state is State.FAILED)
    error = job.status().error
    assert error is not None
    assert error.code == "message_rejected"
    assert not client.keys(f"{namespace}:postponed:*")
    _check_worker_goes_on(worker, producer, client, namespace)


def test_a_newer_message_that_cannot_be_postponed_costs_only_this_message(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    newer = encode(NEWER["newer version"](), HOSTILE_ID)
    client.lpush(f"{namespace}:postponed:{hashlib.sha1(newer.encode()).hexdigest()}", "no string")
    client.lpush(list_key(f"{namespace}.default.native", 3), newer)
    until(lambda: bool(DeadLetters(client, namespace).read()))
    until(lambda: not _claims(client, namespace))
    _check_worker_goes_on(worker, producer, client, namespace)


@pytest.mark.parametrize(
    ("value", "end"), [([1], State.FAILED), (False, State.FAILED), (None, State.SUCCEEDED)]
)
def test_a_recorded_job_with_an_unknown_field_waits_for_a_newer_worker_if_it_has_a_value(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    namespace: str,
    value: object,
    end: State,
) -> None:
    """Without the field the job would give another image."""
    job = producer.submit("a")
    client.delete(*client.keys(f"{namespace}.*"))
    request = {**REQUEST, "a_newer_field": value}
    newer = with_body(
        job_message(job.id, job.status().request, "q"), {"version": 1, "request": request}
    )
    stored = json.loads(client.hget(f"{namespace}:job:{job.id}", "request") or "")
    client.hset(f"{namespace}:job:{job.id}", "request", json.dumps({**stored, **request}))
    _push(client, namespace, newer, job.id)
    start(IMAGEFLEET_NEWER_MESSAGE_S="8")
    if value is not None:
        until(lambda: client.zcard(f"{namespace}:later") == 1)
        assert job.status().state is State.QUEUED
    assert finish(producer, [job], timeout=900) == {end}
    if value is not None:
        error = job.status().error
        assert error is not None
        assert "'a_newer_field', which this worker does not know" in error.message
        assert DeadLetters(client, namespace).read()
