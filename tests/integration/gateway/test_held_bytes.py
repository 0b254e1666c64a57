"""Many large requests at the same moment take no more memory than the gateway has for them."""

import base64
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet, GatewayProcess, fleet_with_gateways
from tests.support.processes import until

_PATH = "/v1/predictions"
_HELD = 40_000_000
_SLACK = 25_000_000
"""The threads and connections of many requests take this, too."""
_REQUESTS = 10


@pytest.fixture(scope="module")
def fleet(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayFleet]:
    settings = {"IMAGEFLEET_HTTP_MAX_HELD_BYTES": str(_HELD)}
    with fleet_with_gateways(
        tmp_path_factory.mktemp("held"), redis_server.url, **settings
    ) as fleet:
        yield fleet


@pytest.fixture
def gateway(fleet: GatewayFleet) -> GatewayProcess:
    return fleet.open_gateway


def _body(number: int) -> bytes:
    """Return a body of 5.3 MB."""
    image = b"\x89PNG\r\n\x1a\n" + number.to_bytes(2, "big") + os.urandom(2_000_000)
    address = "data:image/png;base64," + base64.b64encode(image).decode()
    given: dict[str, Any] = {"prompt": "a", "image": address, "mask_image": address}
    return json.dumps({"input": given}).encode()


def _send(url: str, content: bytes) -> tuple[int, str]:
    headers = {"content-type": "application/json"}
    answer = httpx.post(url + _PATH, content=content, headers=headers, timeout=900)
    return answer.status_code, answer.headers.get("retry-after", "")


def _peak_memory(gateway: GatewayProcess) -> int:
    """Return the most resident memory since it was reset, see proc(5)."""
    status = Path(f"/proc/{gateway.process.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_many_large_bodies_at_once_are_taken_within_the_memory_for_them(
    gateway: GatewayProcess,
) -> None:
    _send(gateway.url, _body(0))  # loads what the first request needs
    Path(f"/proc/{gateway.process.process.pid}/clear_refs").write_text("5")
    before = _peak_memory(gateway)
    statuses = Counter[int]()

    def send_until_taken(content: bytes) -> None:
        while True:
            status, retry_after = _send(gateway.url, content)
            statuses[status] += 1
            if status != 503:
                return
            assert int(retry_after) > 0

    with ThreadPoolExecutor(_REQUESTS) as threads:
        list(threads.map(send_until_taken, map(_body, range(1, _REQUESTS + 1))))
    assert statuses[201] == _REQUESTS
    assert statuses.keys() <= {201, 503}
    assert _peak_memory(gateway) - before < _HELD + _SLACK


def test_a_large_body_is_refused_while_others_hold_the_memory_and_small_ones_are_not(
    gateway: GatewayProcess,
) -> None:
    port = int(gateway.url.rpartition(":")[2])
    head = f"POST {_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as holder:
        holder.sendall(f"{head}content-length: 12000000\r\n\r\n{{".encode())
        until(lambda: _send(gateway.url, _body(1)) == (503, "1"))
        assert _send(gateway.url, b'{"input": {"prompt": "a"}}')[0] == 201
    until(lambda: _send(gateway.url, _body(1))[0] == 201)


def test_a_body_of_unknown_length_takes_memory_as_it_comes(gateway: GatewayProcess) -> None:
    headers = {"content-type": "application/json"}
    large = b'{"input": {"prompt": "' + b"a" * 20_000_000 + b'"}}'
    parts = (large[at : at + 100_000] for at in range(0, len(large), 100_000))
    answer = httpx.post(gateway.url + _PATH, content=parts, headers=headers, timeout=900)
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_bytes")
    wide = '{"input": {"prompt": "\U0001f408' + "a" * 8_000_000 + '"}}'
    answer = httpx.post(gateway.url + _PATH, content=wide.encode(), headers=headers, timeout=900)
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_bytes")
