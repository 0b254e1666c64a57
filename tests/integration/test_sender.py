"""One try to send a callback, to receivers that behave well and badly."""

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagefleet.shared.webhooks.outbox_message import DeliveryVerdict, OutboxMessage
from imagefleet.shared.webhooks.signature import new_secret
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.webhooks.sender import Sender
from tests.support.certificates import make_certificate
from tests.support.receiver import Receiver, Respond, respond_with

SECRET = new_secret()
ALLOW_LOCALHOST = AllowList.parse(["127.0.0.0/8", "::1"])
BODY = '{"type": "job.succeeded", "data": {"prompt": "ein Bär"}}'


def _message(url: str) -> OutboxMessage:
    return OutboxMessage(id="cat-1.succeeded", job_id="cat-1", url=url, body=BODY)


def _sender(timeout_s: float = 60.0) -> Sender:
    return Sender(WebhookSecrets(fleet=[SECRET]), ALLOW_LOCALHOST, timeout_s=timeout_s)


def test_a_callback_arrives_complete_and_signed() -> None:
    with Receiver([SECRET]) as receiver:
        outcome = _sender().send(_message(receiver.url + "?token=1"))
    assert (outcome.verdict, outcome.status) == (DeliveryVerdict.DELIVERED, 204)
    [delivery] = receiver.deliveries
    assert delivery.verified
    assert delivery.body == BODY.encode()
    assert delivery.path == "/callbacks?token=1"
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert delivery.headers["user-agent"].startswith("imagefleet/")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, DeliveryVerdict.DELIVERED),
        (202, DeliveryVerdict.DELIVERED),
        (301, DeliveryVerdict.RETRY),
        (400, DeliveryVerdict.RETRY),
        (404, DeliveryVerdict.RETRY),
        (410, DeliveryVerdict.GONE),
        (429, DeliveryVerdict.RETRY),
        (500, DeliveryVerdict.RETRY),
        (503, DeliveryVerdict.RETRY),
    ],
)
def test_every_status_has_its_verdict(status: int, verdict: DeliveryVerdict) -> None:
    with Receiver([SECRET], respond_with(status)) as receiver:
        outcome = _sender().send(_message(receiver.url))
    assert (outcome.verdict, outcome.status) == (verdict, status)


@pytest.mark.parametrize(
    ("retry_after", "expected_s"),
    [
        *[("120", 120.0), ("0", 0.0), ("-5", 0.0), ("soon", 0.0), ("²", 0.0), ("9" * 40, 0.0)],
        ("1 Jan 99999999999 00:00:00 GMT", 0.0),
        ("31 Dec 9999 23:59:59 -2359", 0.0),
    ],
)
def test_retry_after_is_used_if_it_is_a_number(retry_after: str, expected_s: float) -> None:
    with Receiver([SECRET], respond_with(503, **{"retry-after": retry_after})) as receiver:
        outcome = _sender().send(_message(receiver.url))
    assert outcome.retry_after_s == expected_s


def test_retry_after_may_be_a_date() -> None:
    for date, low, high in ((_http_date(3_600), 3_000, 3_600), (_http_date(-3_600), 0, 0)):
        with Receiver([SECRET], respond_with(503, **{"retry-after": date})) as receiver:
            outcome = _sender().send(_message(receiver.url))
        assert low <= outcome.retry_after_s <= high


def _http_date(in_s: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=in_s), usegmt=True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with Receiver([SECRET]) as inside:
        respond = respond_with(status, location=inside.url)
        with Receiver([SECRET], respond) as receiver:
            outcome = _sender().send(_message(receiver.url))
    assert outcome.verdict is DeliveryVerdict.RETRY
    assert "redirects are not followed" in outcome.reason
    assert inside.deliveries == []


def test_an_internal_address_is_refused_before_anything_is_sent() -> None:
    with Receiver([SECRET]) as receiver:
        outcome = Sender(WebhookSecrets(fleet=[SECRET]), AllowList()).send(_message(receiver.url))
    assert outcome.verdict is DeliveryVerdict.REFUSED
    assert "loopback" in outcome.reason
    assert receiver.deliveries == []


def test_a_receiver_that_refuses_connections_is_retried() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        outcome = _sender().send(_message(f"http://127.0.0.1:{port}/"))
    assert outcome.verdict is DeliveryVerdict.RETRY
    assert "refused" in outcome.reason.lower()


def _resolve_to(
    monkeypatch: pytest.MonkeyPatch, addresses: Callable[[int], list[str]]
) -> list[str]:
    """Let hooks.example resolve to `addresses(n)` at the n-th query. Return the queries."""
    queries: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: int, **kwargs: int) -> list[tuple[object, ...]]:
        if host != "hooks.example":
            return list(real(host, port, *args, **kwargs))
        queries.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses(len(queries))
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return queries


def test_the_name_is_resolved_once_and_the_checked_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queries = _resolve_to(monkeypatch, lambda n: ["127.0.0.1"] if n == 1 else ["169.254.169.254"])
    with Receiver([SECRET]) as receiver:
        outcome = _sender().send(_message(f"http://hooks.example:{receiver.port}/x"))
    assert outcome.verdict is DeliveryVerdict.DELIVERED
    assert queries == ["hooks.example"]
    assert receiver.deliveries[0].headers["host"] == f"hooks.example:{receiver.port}"


def test_the_next_address_is_tried_if_one_refuses_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _resolve_to(monkeypatch, lambda _: ["127.0.0.2", "127.0.0.1"])
    with Receiver([SECRET]) as receiver:
        outcome = _sender().send(_message(f"http://hooks.example:{receiver.port}/x"))
    assert outcome.verdict is DeliveryVerdict.DELIVERED


def test_proxy_settings_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Receiver([SECRET]) as receiver:
        assert _sender().send(_message(receiver.url)).verdict is DeliveryVerdict.DELIVERED


def _send_slowly(part: bytes) -> Respond:
    """Send `part` repeatedly until the client closes the connection."""

    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        pause = threading.Event()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not pause.wait(0.01):
            handler.wfile.write(part)
            handler.wfile.flush()

    return respond


def test_a_receiver_that_sends_headers_slowly_ends_at_the_time_limit() -> None:
    with Receiver([SECRET], _send_slowly(b"x")) as receiver:
        outcome = _sender(timeout_s=0.5).send(_message(receiver.url))
    assert (outcome.verdict, outcome.reason) == (DeliveryVerdict.RETRY, "no answer within 0.5 s")


def _hang_until(released: threading.Event) -> Respond:
    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        released.wait(300)

    return respond


def test_a_receiver_that_never_answers_ends_at_the_time_limit() -> None:
    released = threading.Event()
    with Receiver([SECRET], _hang_until(released)) as receiver:
        outcome = _sender(timeout_s=0.3).send(_message(receiver.url))
        released.set()
    assert (outcome.verdict, outcome.reason) == (DeliveryVerdict.RETRY, "no answer within 0.3 s")


def test_an_endless_body_is_read_up_to_the_size_limit() -> None:
    with Receiver([SECRET], _send_slowly(b"\r\n" + b"x" * 32_768)) as receiver:
        outcome = _sender(timeout_s=30).send(_message(receiver.url))
    assert outcome.verdict is DeliveryVerdict.DELIVERED


@pytest.mark.parametrize(
    "body",
    [b"transfer-encoding: chunked\r\n\r\n20\r\ncut", b"content-length: 100\r\n\r\ncut"],
)
def test_a_body_that_is_cut_off_after_a_good_status_is_delivered(body: bytes) -> None:
    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + body)

    with Receiver([SECRET], respond) as receiver:
        assert _sender().send(_message(receiver.url)).verdict is DeliveryVerdict.DELIVERED


@pytest.mark.parametrize("response", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_a_response_that_is_not_http_is_retried(response: bytes) -> None:
    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.wfile.write(response)

    with Receiver([SECRET], respond) as receiver:
        assert _sender().send(_message(receiver.url)).verdict is DeliveryVerdict.RETRY


def test_https_checks_the_certificate_of_the_name_in_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, trusted = make_certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with Receiver([SECRET], tls=context) as receiver:
        by_name = _sender().send(_message(f"https://localhost:{receiver.port}/"))
        by_address = _sender().send(_message(f"https://127.0.0.1:{receiver.port}/"))
    assert by_name.verdict is DeliveryVerdict.DELIVERED
    assert by_address.verdict is DeliveryVerdict.RETRY
    assert "certificate" in by_address.reason
    assert len(receiver.deliveries) == 1


def test_https_with_an_untrusted_certificate_sends_nothing(tmp_path: Path) -> None:
    context, _ = make_certificate(tmp_path, "localhost")
    with Receiver([SECRET], tls=context) as receiver:
        outcome = _sender().send(_message(f"https://localhost:{receiver.port}/"))
    assert outcome.verdict is DeliveryVerdict.RETRY
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.reason
    assert receiver.deliveries == []


def test_a_tls_handshake_that_never_ends_ends_at_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        outcome = _sender(timeout_s=0.3).send(_message(url))
    assert (outcome.verdict, outcome.reason) == (DeliveryVerdict.RETRY, "no answer within 0.3 s")


def test_the_repr_hides_the_secrets() -> None:
    assert SECRET not in repr(_sender())
