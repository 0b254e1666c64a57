"""One try at a callback, against receivers with good and with bad manners."""

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagefleet.shared.webhooks.messages import DeliveryVerdict, OutboxMessage
from imagefleet.shared.webhooks.signature import new_secret
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.webhooks.sender import Sender
from tests.support.certificates import make_certificate
from tests.support.receiver import Manner, Receiver, answers

SECRET = new_secret()
HERE = AllowList.parse(["127.0.0.0/8", "::1"])
BODY = '{"type": "job.succeeded", "data": {"prompt": "ein Bär"}}'


def _message(url: str) -> OutboxMessage:
    return OutboxMessage(id="cat-1.succeeded", job_id="cat-1", url=url, body=BODY)


def _sender(total_s: float = 60.0) -> Sender:
    return Sender([SECRET], HERE, total_s=total_s)


def test_a_callback_arrives_whole_and_signed() -> None:
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
    with Receiver([SECRET], answers(status)) as receiver:
        outcome = _sender().send(_message(receiver.url))
    assert (outcome.verdict, outcome.status) == (verdict, status)


@pytest.mark.parametrize(
    ("asked", "understood"),
    [("120", 120.0), ("0", 0.0), ("-5", 0.0), ("soon", 0.0), ("²", 0.0), ("9" * 40, 0.0)],
)
def test_retry_after_is_read_when_it_is_a_number(asked: str, understood: float) -> None:
    with Receiver([SECRET], answers(503, **{"retry-after": asked})) as receiver:
        outcome = _sender().send(_message(receiver.url))
    assert outcome.retry_after_s == understood


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with Receiver([SECRET]) as inside:
        manner = answers(status, location=inside.url)
        with Receiver([SECRET], manner) as receiver:
            outcome = _sender().send(_message(receiver.url))
    assert outcome.verdict is DeliveryVerdict.RETRY
    assert "redirects are not followed" in outcome.reason
    assert inside.deliveries == []


def test_an_inside_address_is_refused_before_anything_is_sent() -> None:
    with Receiver([SECRET]) as receiver:
        outcome = Sender([SECRET], AllowList()).send(_message(receiver.url))
    assert outcome.verdict is DeliveryVerdict.REFUSED
    assert "loopback" in outcome.reason
    assert receiver.deliveries == []


def test_a_receiver_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        outcome = _sender().send(_message(f"http://127.0.0.1:{port}/"))
    assert outcome.verdict is DeliveryVerdict.RETRY
    assert "refused" in outcome.reason.lower()


def _resolving(monkeypatch: pytest.MonkeyPatch, answers: Callable[[int], list[str]]) -> list[str]:
    """Let hooks.example resolve to `answers(n)` when it is asked for the n-th time."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: int, **kwargs: int) -> list[tuple[object, ...]]:
        if host != "hooks.example":
            return list(real(host, port, *args, **kwargs))
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in answers(len(asked))
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_the_name_is_resolved_once_and_the_vetted_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = _resolving(monkeypatch, lambda n: ["127.0.0.1"] if n == 1 else ["169.254.169.254"])
    with Receiver([SECRET]) as receiver:
        outcome = _sender().send(_message(f"http://hooks.example:{receiver.port}/x"))
    assert outcome.verdict is DeliveryVerdict.DELIVERED
    assert asked == ["hooks.example"]
    assert receiver.deliveries[0].headers["host"] == f"hooks.example:{receiver.port}"


def test_the_next_address_is_tried_when_one_takes_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _resolving(monkeypatch, lambda _: ["127.0.0.2", "127.0.0.1"])
    with Receiver([SECRET]) as receiver:
        outcome = _sender().send(_message(f"http://hooks.example:{receiver.port}/x"))
    assert outcome.verdict is DeliveryVerdict.DELIVERED


def test_proxy_settings_of_the_environment_are_not_obeyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Receiver([SECRET]) as receiver:
        assert _sender().send(_message(receiver.url)).verdict is DeliveryVerdict.DELIVERED


def _dribble(part: bytes) -> Manner:
    """Send `part`, again and again, until the other side hangs up."""

    def manner(door: BaseHTTPRequestHandler, number: int) -> None:
        pause = threading.Event()
        door.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not pause.wait(0.01):
            door.wfile.write(part)
            door.wfile.flush()

    return manner


def test_a_receiver_that_dribbles_headers_is_cut_off() -> None:
    with Receiver([SECRET], _dribble(b"x")) as receiver:
        outcome = _sender(total_s=0.5).send(_message(receiver.url))
    assert (outcome.verdict, outcome.reason) == (DeliveryVerdict.RETRY, "no answer within 0.5 s")


def _hang_until(over: threading.Event) -> Manner:
    def manner(door: BaseHTTPRequestHandler, number: int) -> None:
        over.wait(60)

    return manner


def test_a_receiver_that_never_answers_is_cut_off() -> None:
    over = threading.Event()
    with Receiver([SECRET], _hang_until(over)) as receiver:
        outcome = _sender(total_s=0.3).send(_message(receiver.url))
        over.set()
    assert (outcome.verdict, outcome.reason) == (DeliveryVerdict.RETRY, "no answer within 0.3 s")


def test_an_endless_body_is_read_no_further_than_its_limit() -> None:
    with Receiver([SECRET], _dribble(b"\r\n" + b"x" * 32_768)) as receiver:
        outcome = _sender(total_s=30).send(_message(receiver.url))
    assert outcome.verdict is DeliveryVerdict.DELIVERED


@pytest.mark.parametrize("rubbish", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http_answer_is_tried_again(rubbish: bytes) -> None:
    def manner(door: BaseHTTPRequestHandler, number: int) -> None:
        door.wfile.write(rubbish)

    with Receiver([SECRET], manner) as receiver:
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


def test_a_tls_handshake_that_never_ends_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        outcome = _sender(total_s=0.3).send(_message(url))
    assert (outcome.verdict, outcome.reason) == (DeliveryVerdict.RETRY, "no answer within 0.3 s")


def test_secrets_do_not_show_in_a_repr() -> None:
    assert SECRET not in repr(_sender())
