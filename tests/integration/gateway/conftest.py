"""A fleet with one worker and one gateway that asks for no keys."""

import pytest

from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker


@pytest.fixture
def worker(start: StartWorker) -> Worker:
    worker = start()
    worker.await_log("ready after")
    return worker


@pytest.fixture
def gateway(start: StartWorker, worker: Worker) -> GatewayProcess:
    return start_gateway(start)
