"""The preemption notice takes effect at once, and no other answer is mistaken for it."""

import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from imagefleet.worker.process.preemption import await_notice, watch_for_notice
from tests.support.image_server import Response, cut_short, stalled, status
from tests.support.metadata_server import MetadataServer, Respond
from tests.support.processes import until


@pytest.fixture
def platform() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def _body(body: bytes) -> Response:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def _wait_for_notice(platform: MetadataServer) -> tuple[threading.Thread, list[str]]:
    """Wait for the notice in a thread. Return the thread, and a list that gets the notice."""
    notices: list[str] = []

    def listen() -> None:
        await_notice(platform.url, pause_s=0.01, timeout_s=0.3)
        notices.append("notice")

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread, notices


def test_the_notice_calls_the_function_once(platform: MetadataServer) -> None:
    notices: list[str] = []
    watch_for_notice(platform.url, lambda: notices.append("notice"))
    until(lambda: len(platform.requests) >= 2)  # the second query waits for a change of the value
    assert not notices
    platform.preempt()
    until(lambda: "preemption" not in {thread.name for thread in threading.enumerate()})
    assert notices == ["notice"]
    assert {query["flavor"] for query in platform.requests} == {"Google"}
    assert {query["wait_for_change"] for query in platform.requests} == {"true"}
    known = [query["last_etag"] for query in platform.requests]
    assert (known[0], set(known[1:])) == ("NONE", {"decaf"})


def test_an_earlier_preemption_is_noticed_at_once(
    platform: MetadataServer,
) -> None:
    platform.preempt()
    await_notice(platform.url)
    assert len(platform.requests) == 1


@pytest.mark.parametrize(
    "misbehave",
    [
        pytest.param(status(503), id="fails"),
        pytest.param(status(404), id="does not know the value"),
        pytest.param(status(302, location="/elsewhere"), id="sends elsewhere"),
        pytest.param(_body(b""), id="says nothing"),
        pytest.param(_body(b"<html>TRUE</html>"), id="says something else"),
        pytest.param(_body(b"TRUE" * 10_000_000), id="says too much"),
        pytest.param(_body(b"\xff\xfe\x00"), id="babbles"),
        pytest.param(cut_short(b"TRUE"), id="is cut off"),
        pytest.param(lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), id="hangs up"),
    ],
)
def test_any_other_answer_is_logged_once_and_queried_again(
    platform: MetadataServer, misbehave: Respond, caplog: pytest.LogCaptureFixture
) -> None:
    platform.respond = misbehave
    with caplog.at_level(logging.INFO):
        thread, notices = _wait_for_notice(platform)
        until(lambda: len(platform.requests) >= 3)
        assert not notices
        platform.preempt()
        platform.respond = None
        thread.join(300)
    assert notices
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "failed, querying it again" in messages[0]


def test_a_server_that_hangs_or_sends_slowly_is_queried_again(platform: MetadataServer) -> None:
    released = threading.Event()
    platform.respond = stalled(b"TRUE", released)
    thread, notices = _wait_for_notice(platform)
    until(lambda: len(platform.requests) >= 3)
    assert not notices
    released.set()
    platform.preempt()
    platform.respond = None
    thread.join(300)
    assert notices


def test_the_recovery_is_logged_too(
    platform: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    platform.respond = status(503)
    with caplog.at_level(logging.INFO):
        thread, notices = _wait_for_notice(platform)
        until(lambda: caplog.records)
        platform.respond = None
        until(lambda: len(caplog.records) > 1)
        assert "answers again" in caplog.records[1].getMessage()
        assert not notices
        platform.preempt()
        thread.join(300)
    assert notices
