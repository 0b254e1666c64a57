"""A fleet with one worker and one gateway that asks for no keys, and one that the tests of a
module share."""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import (
    GatewayFleet,
    GatewayProcess,
    fleet_with_gateways,
    start_gateway,
)
from tests.support.processes import StartWorker, Worker


@pytest.fixture(autouse=True)
def _no_sockets_of_earlier_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what clients leave open, so that no later test is blamed for it. Replicate's client
    cannot be closed, and asynchronous ones end with their event loop. Only what the test made is
    searched for garbage: all objects of the process would take 0.3 s for each test."""
    opened: list[Any] = []
    for module in (httpx, httpx2):
        monkeypatch.setattr(module.Client, "__init__", _noted(module.Client.__init__, opened))
    gc.freeze()
    yield
    for client in opened:
        client.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.unfreeze()


def _noted(make: Callable[..., None], opened: list[Any]) -> Callable[..., None]:
    def make_and_note(self: object, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        opened.append(self)

    return make_and_note


@pytest.fixture
def worker(start: StartWorker) -> Worker:
    worker = start()
    worker.await_log("ready after")
    return worker


@pytest.fixture
def gateway(start: StartWorker, worker: Worker) -> GatewayProcess:
    return start_gateway(start)


@pytest.fixture(scope="module")
def fleet(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayFleet]:
    """Start it once for all tests of a module: the processes take about four seconds of CPU."""
    with fleet_with_gateways(tmp_path_factory.mktemp("fleet"), redis_server.url) as fleet:
        yield fleet
