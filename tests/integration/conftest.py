"""A fleet of this test's own: settings, worker processes with the fake engine, a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from producer import Client
from shared.embedded import EmbeddedRedis
from tests.support.processes import StartWorker, Worker


@pytest.fixture
def settings(redis_server: EmbeddedRedis, namespace: str, tmp_path: Path) -> dict[str, str]:
    return {
        "IMAGEFLEET_REDIS_URL": redis_server.url,
        "IMAGEFLEET_NAMESPACE": namespace,
        "IMAGEFLEET_MODEL": "fake:seconds=0.02,capacity=8",
        "IMAGEFLEET_STORAGE_URL": f"file://{tmp_path}/store",
        "IMAGEFLEET_LEASE_S": "2",
    }


@pytest.fixture
def start(settings: dict[str, str], tmp_path: Path) -> Iterator[StartWorker]:
    started: list[Worker] = []

    def start(*command: str, **more: str) -> Worker:
        worker = Worker(tmp_path, {**settings, **more}, command or ("-m", "worker"))
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def producer(redis_server: EmbeddedRedis, namespace: str) -> Iterator[Client]:
    with Client(redis_server.url, namespace=namespace) as client:
        yield client
