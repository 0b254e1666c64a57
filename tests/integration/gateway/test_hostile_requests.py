"""Requests that want to break, block or deceive a gateway are refused, and others are answered."""

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.slow_clients import SlowClients
from tests.support.tenants import TwoTenants, two_tenants

_PATH = "/v1/images/generations"


@pytest.fixture(scope="module")
def tenants(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoTenants]:
    with two_tenants(redis_server, tmp_path_factory.mktemp("hostile")) as tenants:
        yield tenants


@pytest.fixture(autouse=True)
def _still_answers(tenants: TwoTenants) -> Iterator[None]:
    """The gateway serves after each attack, and nothing unexpected stands in its log."""
    yield
    assert httpx.get(f"{tenants.gateway.url}/healthz").status_code == 200
    assert "unexpected" not in tenants.gateway.process.output()
    assert "Traceback" not in tenants.gateway.process.output()


def _send(tenants: TwoTenants, request: bytes) -> bytes:
    """Send raw bytes, and return all that comes until the gateway closes or answers."""
    with socket.create_connection(("127.0.0.1", tenants.port), timeout=120) as connection:
        connection.sendall(request)
        return connection.recv(65_536)


def _post(tenants: TwoTenants, content: bytes, **headers: str) -> httpx.Response:
    own = {"content-type": "application/json", **headers}
    return tenants.iron.post(_PATH, content=content, headers=own)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/images/../../etc/passwd",
        "/v1/images/%2e%2e/%2e%2e/etc/passwd",
        "/v1/images/x/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/images/x/%2fetc%2fpasswd",
        "/v1/images/x/0.png%00.txt",
        "/v1/images/x%00/0.png",
        "//v1/images/x/0.png",
        "/v1/images//0.png",
        "/v1/images/x/..\\..\\0.png",
        "/v1/images/" + "x" * 5_000 + "/0.png",
        "/v1/images/%ff%fe/0.png",
        "/v1/images/x/%25%32%65%25%32%65",
        "/v1/models/%2e%2e%2f%2e%2e",
    ],
)
def test_a_trick_in_a_path_opens_nothing(tenants: TwoTenants, path: str) -> None:
    key = tenants.keys[1]
    head = f"GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n\r\n"
    answer = _send(tenants, head.encode())
    assert answer.split(b" ")[1] == b"404", answer
    assert b"root:" not in answer


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"prompt": "a", "prompt": "b"}', "twice"),
        (b'{"prompt": "a", "id": "b"}', "id"),
        (b'{"prompt": "a", "self": 1}', "self"),
        (b'{"prompt": "a", "guidance_scale": NaN}', "NaN"),
        (b'{"prompt": "a", "guidance_scale": 1e999}', "guidance_scale"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}", ""),
        (b'{"prompt": "a", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", ""),
        (b'{"prompt": "a", "metadata": ' + b'{"a":' * 90 + b"1" + b"}" * 90 + b"}", "deep"),
        (b'{"prompt": "a", "x": [' + b"1," * 200_000 + b"1]}", "100,000"),
        (b'{"prompt": "a", "model": "\\ud800"}', "JSON"),
        (b'{"prompt": "a", "image": "\\udfff"}', "JSON"),
        (b'{"prompt": "a", "\\udc00": 1}', "JSON"),
        (b'{"prompt": "\xff"}', "JSON"),
        (b'{"prompt": "a\\u0000"}', "control"),
        (b'"prompt"', "object"),
        (b"", "JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_json_is_refused_with_a_reason(
    tenants: TwoTenants, content: bytes, said: str
) -> None:
    refused = _post(tenants, content)
    assert refused.status_code == 400, refused.text
    assert said in refused.json()["error"]["message"]


def test_a_name_that_stands_twice_among_very_many_is_found_at_once(tenants: TwoTenants) -> None:
    names = b",".join(b'"%d":0' % number for number in range(40_000))
    started = time.monotonic()
    refused = _post(tenants, b"{" + names + b',"39999":0}')
    assert time.monotonic() - started < 5
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_json")
    assert "'39999' stands in it twice" in refused.json()["error"]["message"]


def test_a_client_that_leaves_within_its_body_is_no_failure(tenants: TwoTenants) -> None:
    head = (
        f"POST {_PATH} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {tenants.keys[1]}\r\n"
        "x-request-id: leaves\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", tenants.port)) as connection:
        connection.sendall(head.encode())
    until(lambda: "request=leaves" in tenants.gateway.process.output())
    [line] = [each for each in tenants.gateway.process.output().splitlines() if "leaves" in each]
    assert f"POST {_PATH} 499" in line


def test_a_body_that_is_too_large_or_compressed_is_refused(tenants: TwoTenants) -> None:
    large = b'{"prompt": "' + b"a" * 30_000_000 + b'"}'
    assert _post(tenants, large).status_code == 413

    def chunks() -> Iterator[bytes]:  # so without its length
        for start in range(0, len(large), 1_000_000):
            yield large[start : start + 1_000_000]

    chunked = tenants.iron.post(
        _PATH, content=chunks(), headers={"content-type": "application/json"}
    )
    assert chunked.status_code == 413
    for encoding in ("gzip", "br", "GZIP", "deflate, identity"):
        refused = _post(tenants, b"\x1f\x8b", **{"content-encoding": encoding})
        assert refused.status_code == 415


def test_a_body_is_not_read_before_its_key(tenants: TwoTenants) -> None:
    head = f"POST {_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: 29000000\r\n\r\n"
    assert b"401" in _send(tenants, head.encode()).split(b"\r\n")[0]


def test_slow_heads_and_bodies_are_cut_and_keep_nobody_waiting(tenants: TwoTenants) -> None:
    key = tenants.keys[1]
    head = (
        f"POST {_PATH} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
        "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    with SlowClients(tenants.port, 200):
        assert b"408" in _send(tenants, head.encode()).split(b"\r\n")[0]
        answer = tenants.iron.post(_PATH, json={"prompt": "a"})
        assert answer.status_code == 200
    for part in (b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nhost: a\r\n"):
        started = time.monotonic()
        assert _send(tenants, part) == b""
        assert time.monotonic() - started >= 1.9  # IMAGEFLEET_HTTP_HEAD_TIMEOUT_S=2


def test_a_head_without_end_is_refused(tenants: TwoTenants) -> None:
    lines = "".join(f"x-{number}: {'a' * 20}\r\n" for number in range(10_000))
    answer = _send(tenants, f"GET /healthz HTTP/1.1\r\nhost: a\r\n{lines}\r\n".encode())
    assert answer.split(b" ")[1] == b"400"


@pytest.mark.parametrize(
    "head",
    [
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n",
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n",
        "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n",
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n",
        "POST {path} HTTP/1.1\r\nhost : a\r\n",
        "GET /healthz\x00 HTTP/1.1\r\nhost: a\r\n",
    ],
)
def test_a_head_that_a_proxy_may_read_otherwise_is_refused(tenants: TwoTenants, head: str) -> None:
    answer = _send(tenants, (head.format(path=_PATH) + "\r\n0\r\n\r\n").encode())
    assert answer.split(b" ")[1] in (b"400", b"401", b"501"), answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_scripts_stay_text(tenants: TwoTenants) -> None:
    script = "<script>alert(1)</script>"
    body = {"prompt": script, "metadata": {script: script}, "response_format": "url"}
    made = tenants.iron.post(_PATH, json=body)
    assert made.status_code == 200
    image = httpx.get(made.json()["data"][0]["url"])
    refused = [
        tenants.iron.post(_PATH, json={"prompt": "a", "size": script}),
        tenants.iron.get(f"/v1/models/{script}"),
        tenants.iron.get(f"/{script}"),
        tenants.iron.get(_PATH + "?" + script),
    ]
    for answer in (made, image, *refused):
        assert answer.headers["x-content-type-options"] == "nosniff"
        kind = answer.headers["content-type"]
        assert kind in ("application/json", "image/png"), kind
    for answer in refused:
        assert answer.headers["x-request-id"].isprintable()


def test_what_a_request_says_splits_no_line_of_the_log(tenants: TwoTenants) -> None:
    for path in ("/x%0a2026-01-01 INFO imagefleet.http: GET /forged", "/x%1b[2Jy", "/x%e2%80%ae"):
        tenants.iron.get(path.replace(" ", "%20"))
    tenants.iron.post(_PATH, json={"prompt": "a\nFORGED\x1b"})
    for name in ("a b", "x" * 500, "é", "a=1 key=forged"):
        answer = tenants.iron.get("/v1/models", headers={b"x-request-id": name.encode()})
        assert answer.headers["x-request-id"].startswith("req_")
    output = tenants.gateway.process.output()
    assert not any(line.startswith("2026-01-01") for line in output.splitlines())
    assert "FORGED" not in output
    assert output.replace("\n", "").isprintable()


def test_no_secret_stands_in_the_log(tenants: TwoTenants) -> None:
    made = tenants.image_of_gold()
    url = made["data"][0]["url"]
    httpx.get(url)
    httpx.get(url.replace("signature=", "signature=00"))
    basic = httpx.BasicAuth("user", tenants.keys[0])
    assert httpx.get(f"{tenants.gateway.url}/v1/models", auth=basic).status_code == 200
    httpx.get(f"{tenants.gateway.url}/v1/models", headers={"x-api-key": tenants.keys[0] + "x"})
    httpx.get(f"{tenants.gateway.url}/v1/models?key={tenants.keys[0]}")
    output = tenants.gateway.process.output()
    for key in tenants.keys:
        assert key not in output
        assert key.rpartition("_")[2] not in output
    assert "signature=" not in output
    assert url.rpartition("signature=")[2] not in output
    assert "the secret of gold" not in output


def test_wrong_keys_in_masses_open_nothing_and_keep_nobody_waiting(tenants: TwoTenants) -> None:
    right, statuses = tenants.keys[0], []
    with httpx.Client(base_url=tenants.gateway.url) as client:
        for number in range(300):
            secret = f"{number:043d}"
            wrong = f"{right[: -len(secret)]}{secret}" if number % 2 else f"ifk_aaaaaaaaaa_{secret}"
            answer = client.get("/v1/models", headers={"authorization": f"Bearer {wrong}"})
            statuses.append(answer.status_code)
            assert answer.headers.keys() & {"www-authenticate", "retry-after"}
    assert set(statuses) == {401, 429}
    assert tenants.gold.get("/v1/models").status_code == 200


def test_an_address_that_a_proxy_writes_gives_no_right(tenants: TwoTenants) -> None:
    for name in ("x-forwarded-for", "x-real-ip", "forwarded"):
        answer = httpx.get(f"{tenants.gateway.url}/v1/models", headers={name: "127.0.0.1"})
        assert answer.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=127.0.0.1"},
        {"x-real-ip": "127.0.0.1"},
    ],
)
def test_a_gateway_without_keys_answers_no_page_and_no_proxy(
    local: httpx.Client, headers: dict[str, str]
) -> None:
    assert local.get("/v1/models").status_code == 200
    for request in (
        local.build_request("GET", "/v1/models", headers=headers),
        local.build_request("POST", _PATH, json={"prompt": "a"}, headers=headers),
    ):
        answer = local.send(request)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_pages_may_send_unasked_is_refused(local: httpx.Client, kind: str) -> None:
    content = json.dumps({"prompt": "a"}).encode()
    assert local.post(_PATH, content=content, headers={"content-type": kind}).status_code == 415


@pytest.fixture
def local(tenants: TwoTenants) -> Iterator[httpx.Client]:
    """A client of a gateway that asks for no keys."""
    with httpx.Client(base_url=tenants.local.url) as client:
        yield client
