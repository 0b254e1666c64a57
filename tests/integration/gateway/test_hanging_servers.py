"""A Redis or a store that accepts connections and does not answer is named, and keeps no request
waiting for long."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from imagefleet import Client
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.hanging import HangingServer
from tests.support.processes import StartWorker, Worker, until
from tests.support.redis import TcpServer

_PROBED_S = 30
"""A gateway gives Redis, and then the store, 2 s. A busy host takes longer."""
_ANSWERED_S = 60
"""It gives Redis 10 s for other requests."""
_REQUESTS = 50
"""There are 32 threads for them."""


@pytest.fixture
def frozen_later(tmp_path: Path) -> Iterator[TcpServer]:
    with TcpServer(tmp_path / "redis") as server:
        yield server
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture
def hanging() -> Iterator[HangingServer]:
    with HangingServer("127.0.0.1") as server:
        yield server


def _ready(gateway: GatewayProcess) -> httpx.Response:
    return httpx.get(f"{gateway.url}/readyz", timeout=_PROBED_S)


def test_a_frozen_redis_is_named_and_requests_go_on_when_it_does(
    start: StartWorker, frozen_later: TcpServer, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    gateway = start_gateway(start, IMAGEFLEET_REDIS_URL=f"redis://127.0.0.1:{frozen_later.port}/0")
    ready = _ready(gateway)
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ok", "redis": "ok", "store": "ok"},
    )

    def order(number: int) -> httpx.Response:
        url, body = f"{gateway.url}/v1/images/generations", {"prompt": f"{number}"}
        headers = {"x-stainless-retry-count": "0"}  # Redis would note that it was refused
        return httpx.post(url, json=body, headers=headers, timeout=_ANSWERED_S)

    frozen_later.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(_REQUESTS) as threads:
        orders = [threads.submit(order, number) for number in range(_REQUESTS)]
        ready = _ready(gateway)
        assert ready.status_code == 503
        assert "Redis did not answer within 2 s" in ready.json()["error"]["message"]
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200
        for each in orders:
            refused = each.result()
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "broker_unavailable"
            assert refused.headers["retry-after"] == "1"
    frozen_later.process.send_signal(signal.SIGCONT)
    until(lambda: _ready(gateway).status_code == 200)
    path = f"{gateway.url}/v1/predictions/after-it"
    made = httpx.put(path, json={"input": {"prompt": "a"}}, timeout=_ANSWERED_S)
    assert made.status_code == 201, made.text
    assert "Traceback" not in gateway.process.output()


def _with_store(start: StartWorker, server: HangingServer) -> GatewayProcess:
    return start_gateway(
        start,
        IMAGEFLEET_STORAGE_URL=f"s3://images/?endpoint_url=http://127.0.0.1:{server.port}",
        AWS_ACCESS_KEY_ID="a",
        AWS_SECRET_ACCESS_KEY="b",
        AWS_REGION="us-east-1",
    )


def test_a_store_that_hangs_is_named_and_jobs_are_taken(
    start: StartWorker, hanging: HangingServer
) -> None:
    gateway = _with_store(start, hanging)
    for _ in range(2):
        ready = _ready(gateway)
        assert ready.status_code == 200
        assert ready.json() == {"status": "ok", "redis": "ok", "store": "does not answer"}
    path = f"{gateway.url}/v1/predictions/without-it"
    body = {"input": {"prompt": "a"}}
    assert httpx.put(path, json=body, timeout=_ANSWERED_S).status_code == 201
    assert httpx.get(path, timeout=_ANSWERED_S).json()["status"] == "starting"


def test_an_image_in_a_store_that_hangs_is_answered_with_503(
    start: StartWorker, worker: Worker, hanging: HangingServer, producer: Client
) -> None:
    gateway = _with_store(start, hanging)
    job = producer.submit("a")
    assert job.result(timeout=900).images
    refused = httpx.get(f"{gateway.url}/v1/images/{job.id}/0.png", timeout=2 * _ANSWERED_S)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "storage_unavailable"
    assert "the store of images did not answer within 30 s" in refused.text
