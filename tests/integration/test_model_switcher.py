"""A worker with several models, and real processes for each of them."""

import os
import signal
import socket
import socketserver
import threading
from pathlib import Path

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.celery_message import TASK_NAME, task_message
from imagefleet.shared.jobs.fleet_status import FleetReader
from imagefleet.shared.jobs.queues import queue_name
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.commands.model_switcher import ModelSwitcher
from imagefleet.worker.settings.worker_settings import WorkerSettings
from tests.support.processes import StartWorker, Worker, until

SEVERAL = {
    "IMAGEFLEET_MODELS": "fake:name=a,seconds=0.02 fake:name=b,seconds=0.02",
    "IMAGEFLEET_MODEL_MIN_STAY_S": "0",
    "IMAGEFLEET_MODEL_MAX_WAIT_S": "0",
}


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    return {name: each for name, each in settings.items() if name != "IMAGEFLEET_MODEL"}


def _ready(producer: Client) -> list[tuple[str, int]]:
    """Return model and process id of the workers that are ready."""
    workers = producer.fleet.read().workers
    return [
        (each.model, int(each.worker.split(":")[1]))
        for each in workers
        if each.state is WorkerState.READY
    ]


def _await_first_pass(producer: Client) -> None:
    """Wait until every model was loaded once."""
    until(lambda: producer.offers().keys() >= {"a", "b"} and _ready(producer))


def test_jobs_of_every_model_are_made_and_one_model_at_a_time_is_loaded(
    start: StartWorker, producer: Client
) -> None:
    worker = start(**SEVERAL)
    _await_first_pass(producer)
    pids = set()
    for model in ("b", "a", "b", "a"):
        jobs = producer.submit_many(["x", "y"], model=model)
        assert {job.result(timeout=900).model for job in jobs} == {model}
        [(ready, pid)] = until(lambda: _ready(producer))
        assert ready == model
        pids.add(pid)
    assert len(pids) == 4
    assert worker.terminate() == 0
    assert not any(_runs(pid) for pid in pids)
    assert producer.fleet.read().workers == ()


def test_jobs_that_name_no_model_get_the_first(start: StartWorker, producer: Client) -> None:
    start(**SEVERAL)
    _await_first_pass(producer)
    assert producer.submit("x", model="b").result(timeout=900).model == "b"
    assert producer.submit("x").result(timeout=900).model == "a"


def test_work_in_flight_is_finished_before_a_switch(start: StartWorker, producer: Client) -> None:
    start(**SEVERAL, IMAGEFLEET_DRAIN_S="60")
    _await_first_pass(producer)
    slow = producer.submit("x", model="a", num_inference_steps=100)
    until(lambda: slow.status().started_at)
    assert producer.submit("x", model="b").result(timeout=900).model == "b"
    status = slow.status()
    assert (status.state, status.deliveries) == ("succeeded", 1)


def test_a_worker_that_dies_ends_the_process_with_its_code(
    start: StartWorker, producer: Client
) -> None:
    worker = start(**SEVERAL)
    _await_first_pass(producer)
    [(_, pid)] = until(lambda: _ready(producer))
    os.kill(pid, signal.SIGKILL)
    assert worker.wait() == 128 + signal.SIGKILL


def test_another_worker_that_switches_to_a_model_keeps_this_one_back(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    start(**SEVERAL)
    _await_first_pass(producer)
    client.set(f"{namespace}:model-switch:b", "another")
    job = producer.submit("x", model="b")
    assert producer.submit("x", model="a").result(timeout=900).model == "a"
    assert job.status().state == "queued"
    client.delete(f"{namespace}:model-switch:b")
    assert job.result(timeout=900).model == "b"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        pytest.param({"IMAGEFLEET_MODEL": "fake"}, "IMAGEFLEET_MODEL too", id="model and models"),
        pytest.param({"IMAGEFLEET_MODELS": "fake"}, "two models or more", id="one"),
        pytest.param({"IMAGEFLEET_MODELS": "fake fake"}, "each once", id="twice"),
        pytest.param({"IMAGEFLEET_LORA": "a=/a.safetensors"}, "fits one model", id="lora"),
        pytest.param(
            {"IMAGEFLEET_MODELS": "fake:capacity=8 fake:capacity=4"}, "both called", id="one name"
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    start: StartWorker, more: dict[str, str], sentence: str
) -> None:
    worker: Worker = start(**{**SEVERAL, **more})
    assert worker.wait() == 78
    assert sentence in worker.output()


def _switcher(redis_url: str, namespace: str) -> ModelSwitcher:
    models = ("fake:name=a", "fake:name=b")
    return ModelSwitcher(
        WorkerSettings.load(redis_url=redis_url, namespace=namespace, models=models), []
    )


class _HangUp(socketserver.BaseRequestHandler):
    """Counts a connection and closes it."""

    connections = 0

    def handle(self) -> None:
        type(self).connections += 1


def test_each_pass_asks_redis_once(namespace: str) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), _HangUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        switcher = _switcher(f"redis://127.0.0.1:{server.server_address[1]}/0", namespace)
        assert switcher._read_status(1) is None
        server.shutdown()
    assert _HangUp.connections == 1


def test_what_cannot_be_read_does_not_end_the_host(
    redis_server: LocalRedisServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(self: FleetReader) -> None:
        raise ValueError("could not convert string to float")

    monkeypatch.setattr(FleetReader, "read", fail)
    switcher = _switcher(redis_server.url, namespace)
    status = WorkerStatus(worker="w", state=WorkerState.READY, model="a")
    for model, name in (("fake:name=a", "a"), ("fake:name=b", "b")):
        to_visit = [model]
        switcher._note_ready(model, status.model_copy(update={"model": name}), to_visit)
    assert switcher._following("fake:name=a", status, 1000.0, []) is None
    assert "could not convert" in caplog.text


def test_messages_of_plain_celery_grow_older(
    redis_server: LocalRedisServer, client: redis.Redis, namespace: str
) -> None:
    queue = queue_name(namespace, "b", None, None)
    client.lpush(queue, task_message(TASK_NAME, "j", {}, queue=queue, priority=5, images=1))
    client.sadd(known_queues_key(namespace), queue)
    switcher = _switcher(redis_server.url, namespace)
    assert switcher._read_waiting("a", "a")["b"].oldest_s == 0
    assert switcher._read_waiting("a", "a")["b"].oldest_s > 0


def test_the_watchdog_of_systemd_is_fed_during_a_switch(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    notifications: list[bytes] = []

    def read_all(systemd: socket.socket) -> None:
        while lines := systemd.recv(1000):
            notifications.append(lines)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        reader = threading.Thread(target=read_all, args=(systemd,), daemon=True)
        reader.start()
        models = SEVERAL | {"IMAGEFLEET_MODELS": "fake:name=a,seconds=0.3 fake:name=b,seconds=0.02"}
        start(**models, IMAGEFLEET_DRAIN_S="300", NOTIFY_SOCKET=str(tmp_path / "notify"))
        _await_first_pass(producer)
        slow = producer.submit("x", model="a", num_inference_steps=100)
        until(lambda: slow.status().started_at)
        producer.submit("x", model="b")
        until(lambda: WorkerState.DRAINING in [w.state for w in producer.fleet.read().workers])
        before = len(notifications)
        until(lambda: b"WATCHDOG=1" in notifications[before:])
        assert slow.status().state == "running"
        slow.cancel()
        _stop_reading(reader, tmp_path / "notify")


def _stop_reading(reader: threading.Thread, address: Path) -> None:
    """End a thread that reads a socket until an empty datagram comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(str(address))
        sock.send(b"")
    reader.join()


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
