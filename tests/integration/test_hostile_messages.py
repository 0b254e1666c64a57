"""A real worker survives every message that a producer can send: each costs one message only."""

import base64
import bz2
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from imagefleet import Client
from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME, job_message
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until

HOSTILE_ID = "hostile"
MAX_DELIVERIES = 4


def _body(payload: object) -> str:
    return base64.b64encode(json.dumps(payload).encode()).decode()


def _envelope(**changes: object) -> dict[str, Any]:
    """Return a message as plain Celery sends it, with some parts replaced."""
    whole = json.loads(job_message(HOSTILE_ID, JobRequest(prompt="a"), "q"))
    del whole["headers"]["recorded"]
    return {**whole, **changes}


def _headers(**changes: object) -> dict[str, Any]:
    whole = _envelope()
    return {**whole, "headers": {**whole["headers"], **changes}}


def _workflow(**changes: object) -> dict[str, Any]:
    args, kwargs, workflow = json.loads(base64.b64decode(_envelope()["body"]))
    return _envelope(body=_body([args, kwargs, {**workflow, **changes}]))


def _arguments(args: object, kwargs: object, **headers: object) -> dict[str, Any]:
    return {**_headers(**headers), "body": _body([args, kwargs, {}])}


def _bomb() -> dict[str, Any]:
    packed = bz2.compress(b" " * 200_000_000)
    return {**_headers(compression="bzip2"), "body": base64.b64encode(packed).decode()}


_REQUEST = {"prompt": "a", "seed": 1}
_SIGNATURE = {"task": TASK_NAME, "args": [], "kwargs": {}, "options": {}}

REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "newer version": lambda: _arguments([], {"version": 2, "request": _REQUEST}),
    "huge version": lambda: _arguments([], {"version": 10**400, "request": _REQUEST}),
    "unknown field": lambda: _arguments([], {"version": 1, "request": {**_REQUEST, "new": 1}}),
    "content type": lambda: _envelope(**{"content-type": "\ud800"}),
    "content encoding": lambda: _envelope(**{"content-encoding": "zlib"}),
    "positional arguments": lambda: _arguments(["a red star"], {}),
    "positional and keyword": lambda: _arguments([1], {"version": 1, "request": _REQUEST}),
    "arguments are no mapping": lambda: _arguments([], [1]),
    "chord_unlock": lambda: _arguments([], {}, task="celery.chord_unlock"),
    "backend_cleanup": lambda: _arguments([], {}, task="celery.backend_cleanup"),
    "unknown task": lambda: _arguments([], {}, task="nobody.\x1bknows"),
    "surrogate task": lambda: _arguments([], {}, task="\ud800"),
    "shard on a queue of jobs": lambda: _arguments(
        [], {"version": 1, "run": "r", "shard": 1, "destination": "/x"}, task=BULK_TASK_NAME
    ),
    "chain of text": lambda: _workflow(chain="x"),
    "chain of numbers": lambda: _workflow(chain=[5]),
    "chain without task": lambda: _workflow(chain=[{"args": []}]),
    "chain with odd options": lambda: _workflow(chain=[{**_SIGNATURE, "options": "x"}]),
    "chord": lambda: _workflow(chord=[1]),
    "callbacks": lambda: _workflow(callbacks=7),
    "errbacks": lambda: _workflow(errbacks=[[[]]]),
    "workflow that overwrites": lambda: _workflow(properties={"delivery_tag": "1.000000"}),
    "group": lambda: _headers(group={}),
    "parent": lambda: _headers(parent_id=[]),
    "root": lambda: _headers(root_id={"a": 1}),
    "retries": lambda: _headers(retries="many"),
    "expires": lambda: _headers(expires="\ud800"),
    "compression": _bomb,
    "too long": lambda: _envelope(body="A" * 1_500_000),
}
"""Messages that end as dead letters or as failed jobs."""

HARMLESS: dict[str, Callable[[], dict[str, Any]]] = {
    "time limit -1": lambda: _headers(timelimit=-1),
    "time limits -1, none": lambda: _headers(timelimit=[-1, None]),
    "time limits of text": lambda: _headers(timelimit=["soon", "later"]),
    "huge time limits": lambda: _headers(timelimit=[10**400, 10**400]),
    "unhashable shadow": lambda: _headers(shadow=[{}]),
    "shadow with controls": lambda: _headers(shadow="\x1b[2J"),
    "argsrepr": lambda: _headers(argsrepr={}, kwargsrepr=["\ud800"], origin=5, lang=[]),
    "self": lambda: _arguments([], {"version": 1, "request": _REQUEST, "self": 1}),
    "no compression": lambda: _headers(compression="none"),
}
"""Messages with parts that a job has no use for: it is done."""


def _signature(**changes: object) -> dict[str, Any]:
    return {**_SIGNATURE, **changes}


BROKEN_ENDS: dict[str, Callable[[], dict[str, Any]]] = {
    "serializer of the chain": lambda: _workflow(
        chain=[_signature(options={"serializer": "none such"})]
    ),
    "queue of the chain": lambda: _workflow(chain=[_signature(options={"queue": {}})]),
    "countdown of the chain": lambda: _workflow(chain=[_signature(options={"countdown": "x"})]),
    "task id of the chain": lambda: _workflow(chain=[_signature(options={"task_id": []})]),
    "group without tasks": lambda: _workflow(
        callbacks=[_signature(task="celery.group", subtask_type="group")]
    ),
    "chord callback": lambda: _workflow(callbacks=[_signature(subtask_type="chord")]),
    "unknown kind": lambda: _workflow(chain=[_signature(subtask_type="\ud800")]),
    "chord without group": lambda: _workflow(chord=_signature(chord_size="many")),
    "chord in a group": lambda: {
        **_workflow(chord=_signature(chord_size="many")),
        "headers": {**_headers()["headers"], "group": "g"},
    },
    "reply": lambda: {
        **_envelope(),
        "properties": {**_envelope()["properties"], "reply_to": "somewhere"},
    },
}
"""Messages whose job can be done, but whose workflow breaks when it ends."""


@pytest.fixture
def worker(start: StartWorker) -> Worker:
    worker = start(
        IMAGEFLEET_MAX_DELIVERIES=str(MAX_DELIVERIES), IMAGEFLEET_NEWER_MESSAGE_S="10"
    )
    worker.await_log("ready after")
    return worker


def _push(client: redis.Redis, namespace: str, message: dict[str, Any]) -> None:
    client.lpush(list_key(f"{namespace}.default.native", 3), json.dumps(message))


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
    assert finish(producer, [producer.submit("an ordinary job")], timeout=30) == {State.SUCCEEDED}
    assert worker.process.poll() is None
    until(lambda: not _claims(client, namespace), 30)
    assert "the devices thread failed" not in worker.output()


def test_messages_with_useless_parts_are_done(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for at, message in enumerate(HARMLESS.values()):
        envelope = message()
        envelope["headers"]["id"] = f"job-{at}"
        _push(client, namespace, envelope)
    _check_worker_goes_on(worker, producer, client, namespace)
    states = {name: _state(producer, f"job-{at}") for at, name in enumerate(HARMLESS)}
    assert states == dict.fromkeys(HARMLESS, State.SUCCEEDED)
    assert not producer.dead_letters.read()


def test_each_hostile_message_ends_alone(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for at, message in enumerate(REFUSED.values()):
        envelope = message()
        envelope["headers"]["id"] = f"job-{at}"
        _push(client, namespace, envelope)
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

    until(lambda: unfinished() in ([], ["newer version"], ["newer version", "huge version"]), 30)
    until(lambda: not unfinished(), 90)  # the newer ones wait for newer workers
    most = max(letter.deliveries for letter in DeadLetters(client, namespace).read())
    assert most <= MAX_DELIVERIES
    _check_worker_goes_on(worker, producer, client, namespace)
    assert not client.zcard(f"{namespace}:later")


def test_a_workflow_that_breaks_costs_its_own_job_at_most(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    for at, message in enumerate(BROKEN_ENDS.values()):
        envelope = message()
        envelope["headers"]["id"] = f"job-{at}"
        _push(client, namespace, envelope)
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
    _push(client, namespace, _envelope())
    client.hset(f"{namespace}:job:other", mapping={"state": "nowhere"})
    client.hset(f"{namespace}:job:empty", mapping={"state": "", "request": "{}"})
    _push(client, namespace, _headers(id="other"))
    _push(client, namespace, _headers(id="empty", recorded=True))
    _check_worker_goes_on(worker, producer, client, namespace)
    letters = {letter.job_id for letter in producer.dead_letters.read()}
    assert letters == {HOSTILE_ID, "other", "empty"}


def test_a_message_that_killed_all_its_workers_is_not_opened(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    worker.freeze()
    message = json.dumps(_envelope())
    digest = hashlib.sha1(message.encode()).hexdigest()
    client.hset(f"{namespace}:deliveries", digest, MAX_DELIVERIES + 1)
    client.lpush(list_key(f"{namespace}.default.native", 3), message)
    worker.thaw()
    until(lambda: producer.dead_letters.read(), 30)
    _check_worker_goes_on(worker, producer, client, namespace)
    [letter] = producer.dead_letters.read()
    assert (letter.code, letter.job_id) == ("too_many_deliveries", HOSTILE_ID)
    assert f"[{HOSTILE_ID}] received" not in worker.output()
    assert not client.hlen(f"{namespace}:deliveries")


def test_a_hostile_message_before_any_other_is_refused_by_a_worker_that_starts(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    _push(client, namespace, _envelope(**{"content-type": "\ud800"}))
    _push(client, namespace, _headers(timelimit=-1))
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
            sent.get(timeout=30)
    until(lambda: _state(producer, sent.id) is State.FAILED, 30)
    error = producer.get(sent.id).status().error
    assert error is not None
    assert error.code == "message_rejected"
    assert "keyword arguments" in error.message
    assert [letter.job_id for letter in producer.dead_letters.read()] == [sent.id]


def test_a_refused_job_of_plain_celery_leaves_a_failed_record_with_what_is_readable(
    worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    request = {"prompt": "a circle", "negativ_prompt": "x", "seed": -1, "num_inference_steps": 3}
    _push(client, namespace, _arguments([], {"version": 1, "request": request}))
    until(lambda: _state(producer, HOSTILE_ID) is State.FAILED, 30)
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
    newer = json.loads(job_message(job.id, job.status().request, "q"))
    newer["body"] = _body([[], {"version": 2, "request": _REQUEST}, {}])
    _push(client, namespace, newer)
    worker = start(IMAGEFLEET_NEWER_MESSAGE_S="8")
    until(lambda: client.zcard(f"{namespace}:later") == 1, 30)
    assert not client.exists(f"{namespace}:deliveries"), "no worker died with it"
    assert job.status().state is State.QUEUED
    until(lambda: job.status().state is State.FAILED, 90)
    error = job.status().error
    assert error is not None
    assert error.code == "message_rejected"
    assert not client.keys(f"{namespace}:postponed:*")
    _check_worker_goes_on(worker, producer, client, namespace)


def test_a_recorded_job_with_an_unknown_field_is_done(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    job = producer.submit("a")
    client.delete(*client.keys(f"{namespace}.*"))
    newer = json.loads(job_message(job.id, job.status().request, "q"))
    request = {**_REQUEST, "a_newer_field": [1]}
    newer["body"] = _body([[], {"version": 1, "request": request}, {}])
    stored = json.loads(client.hget(f"{namespace}:job:{job.id}", "request") or "")
    client.hset(f"{namespace}:job:{job.id}", "request", json.dumps({**stored, **request}))
    _push(client, namespace, newer)
    start()
    assert finish(producer, [job], timeout=30) == {State.SUCCEEDED}
