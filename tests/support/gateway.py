"""A gateway process of a test."""

import re
from dataclasses import dataclass
from typing import Final

from tests.support.processes import StartWorker, Worker, until

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
