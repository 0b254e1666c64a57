"""A fleet with one worker and one gateway that asks for no keys."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker


@pytest.fixture(autouse=True)
def _no_sockets_of_earlier_tests() -> Iterator[None]:
    """Collect the connections that the clients of others leave open, so that no later test is
    blamed for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def worker(start: StartWorker) -> Worker:
    worker = start()
    worker.await_log("ready after")
    return worker


@pytest.fixture
def gateway(start: StartWorker, worker: Worker) -> GatewayProcess:
    return start_gateway(start)
