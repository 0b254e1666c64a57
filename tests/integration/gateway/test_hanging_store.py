"""A store that hangs keeps only those calls waiting that need it."""

import asyncio
import threading

import httpx
import pytest

from imagefleet.producer.gateway.app import build_app
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import ImageResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore
from tests.support.records import result_of_one_image

_READS = 40
"""There are more than threads for them."""


def test_redis_is_asked_while_the_store_of_images_hangs(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    goes_on = threading.Event()
    result = result_of_one_image()

    def open_store(root: str) -> ObjectStore:
        goes_on.wait(60)
        raise KeyError(root)

    result.bind(open_store)
    [image] = result.images

    async def ask(image: ImageResult) -> list[object]:
        reads = [asyncio.create_task(gateway.images.read(image)) for _ in range(_READS)]
        await asyncio.sleep(0)  # they are in the threads now, or wait for one
        try:
            await asyncio.wait_for(gateway.threads.run(gateway.client.check), 20)
        finally:
            goes_on.set()
            ended = await asyncio.gather(*reads, return_exceptions=True)
        return list(ended)

    assert len(asyncio.run(ask(image))) == _READS
    gateway.close()


def test_a_job_is_shown_without_its_metadata_while_the_store_hangs(
    redis_server: LocalRedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    goes_on = threading.Event()

    def open_store(root: str) -> ObjectStore:
        goes_on.wait(60)
        raise KeyError(root)

    monkeypatch.setattr(gateway.client.connection, "store_of", open_store)
    request = JobRequest.parse({"prompt": "a"})
    status = JobStatus(
        id="j",
        state=State.SUCCEEDED,
        request=request,
        submitted_at=1.0,
        result=result_of_one_image(),
    )

    async def ask() -> tuple[dict[str, object], bool]:
        found = await gateway.images.metadata(status)
        was_hanging = not goes_on.is_set()
        goes_on.set()
        return found, was_hanging

    assert asyncio.run(ask()) == ({}, True)
    gateway.close()


def test_a_gateway_without_credentials_for_the_store_is_ready(
    redis_server: LocalRedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    settings = GatewaySettings.load(
        redis_url=redis_server.url,
        namespace=namespace,
        storage_url="s3://images/?endpoint_url=http://127.0.0.1:1&region=us-east-1",
    )
    gateway = Gateway(settings, require_keys=False)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            return await http.get("/readyz")

    ready = asyncio.run(ask())
    gateway.close()
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ok", "redis": "ok", "store": "unknown"},
    )
