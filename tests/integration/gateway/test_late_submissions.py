"""A job or a run that Redis accepts after its request was refused is that of the repetition."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from imagefleet.producer.gateway.app import build_app
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from tests.support.processes import until
from tests.support.redis import TcpServer

_LATE_S = 0.2
_WAIT_S = 0.5
"""No worker lives, so requests for images end with 504."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TcpServer]:
    with TcpServer(tmp_path / "redis") as server:
        yield server
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture
def gateway(server: TcpServer, tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "store").mkdir()
    settings = GatewaySettings.load(
        redis_url=f"redis://127.0.0.1:{server.port}/0",
        storage_url=f"file://{tmp_path}/store",
        http_wait_s=_WAIT_S,
    )
    gateway = Gateway(settings, require_keys=False)
    gateway.secret.load()
    yield gateway
    gateway.close()


def _freeze_redis_before(
    called: Callable[..., object],
    gateway: Gateway,
    server: TcpServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let Redis stop before the first call of a function, which is soon late then."""
    run = gateway.threads.run

    async def frozen(function: Callable[..., Any], *args: object) -> Any:
        if function != called:
            return await run(function, *args)
        monkeypatch.setattr(gateway.threads, "run", run)
        server.process.send_signal(signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gateway.threads, "_within_s", _LATE_S)
            return await run(function, *args)

    monkeypatch.setattr(gateway.threads, "run", frozen)


def _post(app: FastAPI, path: str, body: dict[str, Any], tries: int) -> httpx.Response:
    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            headers = {"x-stainless-retry-count": str(tries)}
            return await http.post(path, json=body, headers=headers, timeout=900)

    return asyncio.run(post())


def test_a_late_job_is_that_of_the_repeated_request(
    gateway: Gateway, server: TcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, path, body = build_app(gateway), "/v1/images/generations", {"prompt": "a ring"}
    _freeze_redis_before(gateway.jobs._submit_listed, gateway, server, monkeypatch)
    refused = _post(app, path, body, tries=0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "broker_unavailable")
    server.process.send_signal(signal.SIGCONT)
    [job] = until(lambda: list(gateway.client.jobs()))
    repeated = _post(app, path, body, tries=1)
    assert repeated.status_code == 504
    assert [each.id for each in gateway.client.jobs()] == [job.id]
    other = _post(app, path, body, tries=0)  # it is no repetition
    assert other.status_code == 504
    assert len(list(gateway.client.jobs())) == 2


def test_a_late_run_is_that_of_the_repeated_request(
    gateway: Gateway, server: TcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, path, body = build_app(gateway), "/v1/runs", {"rows": ["a ring"]}
    _freeze_redis_before(app.state.run_keeper.orders.create, gateway, server, monkeypatch)
    refused = _post(app, path, body, tries=0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "broker_unavailable")
    server.process.send_signal(signal.SIGCONT)
    repeated = _post(app, path, body, tries=1)
    assert repeated.status_code == 200, repeated.text
    assert [each["id"] for each in _runs(app)] == [repeated.json()["id"]]


def _runs(app: FastAPI) -> list[dict[str, Any]]:
    async def read() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.get("/v1/runs")

    runs: list[dict[str, Any]] = asyncio.run(read()).json()["data"]
    return runs
