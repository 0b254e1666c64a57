"""A gateway process of a test, and a fleet with gateways that tests share."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefleet import Client
from tests.support.processes import StartWorker, Worker, until, worker_processes
from tests.support.settings import worker_settings

SERVE: Final = ("-m", "imagefleet.producer", "serve", "--port", "0")
_READY: Final = re.compile(r"imagefleet serves HTTP on (http://\S+)/v1")


@dataclass(frozen=True, kw_only=True)
class GatewayProcess:
    """A gateway that serves."""

    process: Worker
    url: str
    """Its address, without a path."""


def start_gateway(start: StartWorker, *arguments: str, **settings: str) -> GatewayProcess:
    """Start a gateway on the Redis of the test, and return it once it serves."""
    process = start(*SERVE, *arguments, **settings)
    until(lambda: _READY.search(process.output()) or process.process.poll() is not None)
    ready = _READY.search(process.output())
    assert ready, process.output()
    return GatewayProcess(process=process, url=ready[1])


@dataclass(frozen=True, kw_only=True)
class GatewayFleet:
    """A fleet that the tests of one module share: a worker and two gateways."""

    producer: Client
    guarded_url: str
    """The gateway at this address asks for keys."""
    open_gateway: GatewayProcess
    """It asks for none."""

    @property
    def open_url(self) -> str:
        """The address of the gateway that asks for no keys."""
        return self.open_gateway.url


@contextmanager
def fleet_with_gateways(folder: Path, redis_url: str, **settings: str) -> Iterator[GatewayFleet]:
    """Start a worker, by default with the fake engine, and two gateways with these settings."""
    namespace = f"t{uuid.uuid4().hex[:8]}"
    settings = {
        "IMAGEFLEET_NAMESPACE": namespace,
        "IMAGEFLEET_MODEL": "fake:seconds=0.01,capacity=8",
        **settings,
    }
    with (
        worker_processes(folder, worker_settings(redis_url, folder, **settings)) as start,
        Client(redis_url, namespace=namespace) as producer,
    ):
        start().await_log("ready after")
        guarded = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
        open_gateway = start_gateway(start)
        yield GatewayFleet(producer=producer, guarded_url=guarded.url, open_gateway=open_gateway)
