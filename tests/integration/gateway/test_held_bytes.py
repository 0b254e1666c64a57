"""Many large requests at the same moment take no more memory than the gateway has for them."""

import base64
import json
import os
import socket
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
_LATENTS = 24
"""They have 0.26 MB each, and more in base64."""
_LARGE_ANSWER = {"prompt": "b", "denoising_end": 0.5, "n": _LATENTS, "size": "1024x1024"}


@pytest.fixture(scope="module")
def fleet(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayFleet]:
    settings = {
        "IMAGEFLEET_HTTP_MAX_HELD_BYTES": str(_HELD),
        "IMAGEFLEET_HTTP_SEND_TIMEOUT_S": "1",
        "IMAGEFLEET_SHAPES": "64x64,1024x1024",
    }
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


def _send(url: str, content: bytes, path: str = _PATH) -> tuple[int, str]:
    headers = {"content-type": "application/json", "idempotency-key": str(hash(content))}
    answer = httpx.post(url + path, content=content, headers=headers, timeout=900)
    return answer.status_code, answer.headers.get("retry-after", "")


def _send_at_once(gateway: GatewayProcess, path: str, contents: list[bytes]) -> int:
    """Send bodies at the same moment, and again after a 503. Return by how much the gateway's
    memory has grown meanwhile."""
    Path(f"/proc/{gateway.process.process.pid}/clear_refs").write_text("5")
    before = _peak_memory(gateway)

    def send_until_answered(content: bytes) -> int:
        while True:
            status, retry_after = _send(gateway.url, content, path)
            if status != 503:
                return status
            assert int(retry_after) > 0

    with ThreadPoolExecutor(_REQUESTS) as threads:
        statuses = set(threads.map(send_until_answered, contents))
    assert statuses <= {200, 201}
    return _peak_memory(gateway) - before


def _peak_memory(gateway: GatewayProcess) -> int:
    """Return the most resident memory since it was reset, see proc(5)."""
    status = Path(f"/proc/{gateway.process.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_many_large_bodies_at_once_are_taken_within_the_memory_for_them(
    gateway: GatewayProcess,
) -> None:
    _send(gateway.url, _body(0))  # loads what the first request needs
    bodies = [_body(number) for number in range(1, _REQUESTS + 1)]
    assert _send_at_once(gateway, _PATH, bodies) < _HELD + _SLACK


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/images/generations", {"n": _LATENTS, "size": "1024x1024"}),
        ("/v1/images/generations", {"n": _LATENTS, "size": "1024x1024", "stream": True}),
        ("/sdapi/v1/txt2img", {"n_iter": _LATENTS, "width": 1_024, "height": 1_024}),
    ],
)
def test_many_large_answers_at_once_are_built_within_the_memory_for_them(
    gateway: GatewayProcess, path: str, fields: dict[str, Any]
) -> None:
    body = json.dumps({"prompt": "a", "denoising_end": 0.5, **fields}).encode()
    _send(gateway.url, body, path)  # makes the images
    assert _send_at_once(gateway, path, [body] * _REQUESTS) < _HELD + _SLACK


def _read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_a_client_that_does_not_read_its_answer_is_cut(gateway: GatewayProcess) -> None:
    port, body = int(gateway.url.rpartition(":")[2]), json.dumps(_LARGE_ANSWER).encode()
    _send(gateway.url, body, "/v1/images/generations")
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.connect(("127.0.0.1", port))
        head = (
            "POST /v1/images/generations HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/json\r\nidempotency-key: {hash(body)}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        reader.sendall(head.encode() + body)
        cut = "cut a connection whose client 127.0.0.1 read nothing for 1 s"
        until(lambda: cut in gateway.process.output())
        with pytest.raises(ConnectionResetError):
            _read_to_the_end(reader)


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
