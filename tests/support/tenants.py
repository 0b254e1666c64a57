"""A fleet of tests whose gateway asks for keys, with the keys of two tenants."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import worker_processes
from tests.support.settings import worker_settings


@dataclass(frozen=True, kw_only=True)
class TwoTenants:
    """Two tenants share a fleet; `gold` and `iron` send requests with the key of one of them."""

    gateway: GatewayProcess
    local: GatewayProcess
    """It asks for no keys."""
    gold: httpx.Client
    iron: httpx.Client
    producer: Client
    keys: tuple[str, str]

    @property
    def port(self) -> int:
        """The port of the gateway on 127.0.0.1."""
        return int(self.gateway.url.rpartition(":")[2])

    def image_of_gold(self, **fields: Any) -> dict[str, Any]:
        """Let gold make an image, and return the answer with its address."""
        body = {"prompt": "the secret of gold", "response_format": "url", **fields}
        answer = self.gold.post("/v1/images/generations", json=body)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made


@contextmanager
def two_tenants(redis_server: LocalRedisServer, folder: Path) -> Iterator[TwoTenants]:
    """Start a worker and a gateway, and end them after the block."""
    namespace = f"t{uuid.uuid4().hex[:8]}"
    settings = worker_settings(
        redis_server.url,
        folder,
        IMAGEFLEET_NAMESPACE=namespace,
        IMAGEFLEET_HTTP_REQUIRE_KEYS="true",
        IMAGEFLEET_HTTP_HEAD_TIMEOUT_S="2",
        IMAGEFLEET_HTTP_BODY_TIMEOUT_S="10",
        IMAGEFLEET_HTTP_MAX_BODY_BYTES="30000000",
    )
    with worker_processes(folder, settings) as start:
        start().await_log("ready after")
        gateway = start_gateway(start)
        local = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="false")
        with Client(redis_server.url, namespace=namespace) as producer:
            api_keys = ApiKeys(producer.connection)
            rights = [Scope.SUBMIT, Scope.READ]
            keys = (api_keys.create("a", "gold", rights), api_keys.create("b", "iron", rights))
            with _sender(gateway.url, keys[0]) as gold, _sender(gateway.url, keys[1]) as iron:
                yield TwoTenants(
                    gateway=gateway, local=local, gold=gold, iron=iron, producer=producer, keys=keys
                )


def _sender(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=300)
