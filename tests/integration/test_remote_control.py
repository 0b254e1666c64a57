"""Celery's remote control: a namespace hears its own commands only, and none harms a worker."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.celery_app.remote_control import COMMANDS
from tests.support.control_messages import (
    ARGUMENTS,
    celery_commands,
    drawn_messages,
    remote_control_app,
)
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until

_DRAWN = 2_000


@pytest.fixture
def control(redis_server: LocalRedisServer, namespace: str) -> Iterator[Any]:
    """Celery's remote control of the fleet."""
    with remote_control_app(redis_server.url, namespace) as app:
        yield app.control


def _await_node(control: Any) -> str:
    """Return the worker's name, once it listens: a command before that is lost."""
    [answer] = until(lambda: control.ping(timeout=1))
    [(name, said)] = answer.items()
    assert said == {"ok": "pong"}
    return str(name)


def _ask(control: Any, command: str, **arguments: Any) -> Any:
    answers = control.broadcast(command, arguments=arguments, reply=True, timeout=10, limit=1)
    [answer] = answers
    [said] = answer.values()
    return said


def _check_works(worker: Worker, producer: Client, prompts: int = 20) -> None:
    jobs = producer.submit_many(["a"] * prompts)
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert worker.process.poll() is None


def test_shutdown_reaches_no_other_namespace(
    start: StartWorker, redis_server: LocalRedisServer, control: Any, namespace: str
) -> None:
    other = f"{namespace}-other"
    ours, theirs = start(), start(IMAGEFLEET_NAMESPACE=other)
    _await_node(control)
    with remote_control_app(redis_server.url, other) as app:
        _await_node(app.control)
        assert app.control.broadcast("shutdown", reply=True, timeout=10, limit=1)
        assert theirs.wait() == 0
        with Celery(broker=celery_url(redis_server.url), set_as_current=False) as stock:
            assert stock.control.ping(timeout=1) == []
            stock.control.shutdown()
        assert not app.control.ping(timeout=1)
    _await_node(control)
    with Client(redis_server.url, namespace=namespace) as producer:
        _check_works(ours, producer)


def test_each_command_of_celery_is_answered_or_refused_and_changes_nothing(
    start: StartWorker, producer: Client, control: Any
) -> None:
    worker = start()
    _await_node(control)
    before = _ask(control, "active_queues"), _ask(control, "stats")["pool"]["max-concurrency"]
    said = {name: _ask(control, name, **ARGUMENTS.get(name, {})) for name in celery_commands()}
    refused = {name for name, each in said.items() if isinstance(each, dict) and "error" in each}
    assert refused == set(said) - set(COMMANDS)
    assert "'rate_limit', but only active" in said["rate_limit"]["error"]
    _check_works(worker, producer)
    assert (
        _ask(control, "active_queues"),
        _ask(control, "stats")["pool"]["max-concurrency"],
    ) == before


def test_drawn_messages_neither_end_nor_change_a_worker(
    start: StartWorker, producer: Client, client: redis.Redis, control: Any, namespace: str
) -> None:
    worker = start()
    _await_node(control)
    channel = f"/{client.get_connection_kwargs().get('db') or 0}.{namespace}.pidbox"
    for message in drawn_messages(seed=36, count=_DRAWN):
        assert client.publish(channel, message) == 1
    until(lambda: control.ping(timeout=2))
    _check_works(worker, producer)
    assert "Traceback" not in worker.output()
    assert worker.output().count("remote control") < 50
    assert worker.output().count("Connected to") == 1


def test_revoke_cancels_waiting_running_and_unknown_jobs(
    start: StartWorker,
    producer: Client,
    redis_server: LocalRedisServer,
    control: Any,
    namespace: str,
) -> None:
    worker = start(IMAGEFLEET_MODEL="fake:seconds=1,capacity=1")
    _await_node(control)
    running, waiting = producer.submit_many(["a", "b"], num_inference_steps=100)
    until(lambda: running.status().state is State.RUNNING)
    said = _ask(control, "revoke", task_id=[waiting.id, running.id, "later"], terminate=True)
    assert f"{waiting.id}: cancelled; {running.id}: " in said["ok"]
    assert finish(producer, [running, waiting]) == {State.CANCELLED}
    with Celery(broker=celery_url(redis_server.url), set_as_current=False) as app:
        app.send_task(
            "imagefleet.render",
            kwargs={"prompt": "a"},
            task_id="later",
            queue=f"{namespace}.default.native",
        )
    worker.await_log("Discarding revoked task: imagefleet.render[later]")
