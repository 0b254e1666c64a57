"""The platform's notice is heard at once, and nothing but the notice is taken for it."""

import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from imagefleet.worker.process.preemption import await_notice, watch_for_notice
from tests.support.gallery import Shown, broken_off, endless, status
from tests.support.metadata_server import Manner, MetadataServer
from tests.support.processes import until


@pytest.fixture
def platform() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def _body(body: bytes) -> Shown:
    def answer(door: BaseHTTPRequestHandler) -> None:
        door.send_response(200)
        door.end_headers()
        door.wfile.write(body)

    return answer


def _listen(platform: MetadataServer) -> tuple[threading.Thread, list[str]]:
    """Somebody who waits for the notice, and hears it at last."""
    heard: list[str] = []

    def listen() -> None:
        await_notice(platform.url, pause_s=0.01, timeout_s=0.3)
        heard.append("notice")

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread, heard


def test_the_notice_is_heard_and_told_once(platform: MetadataServer) -> None:
    heard: list[str] = []
    watch_for_notice(platform.url, lambda: heard.append("notice"))
    until(lambda: len(platform.asked) >= 2)  # it knows the value now, and waits for another
    assert not heard
    platform.preempt()
    until(lambda: "preemption" not in {thread.name for thread in threading.enumerate()})
    assert heard == ["notice"]
    assert {query["flavor"] for query in platform.asked} == {"Google"}
    assert {query["wait_for_change"] for query in platform.asked} == {"true"}
    known = [query["last_etag"] for query in platform.asked]
    assert (known[0], set(known[1:])) == ("NONE", {"decaf"})


def test_a_host_that_was_preempted_before_anybody_asked_hears_it_at_once(
    platform: MetadataServer,
) -> None:
    platform.preempt()
    await_notice(platform.url)
    assert len(platform.asked) == 1


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
        pytest.param(broken_off(b"TRUE"), id="is cut off"),
        pytest.param(lambda door: door.connection.shutdown(socket.SHUT_RDWR), id="hangs up"),
    ],
)
def test_what_is_not_the_notice_is_told_once_and_asked_again(
    platform: MetadataServer, misbehave: Manner, caplog: pytest.LogCaptureFixture
) -> None:
    platform.manner = misbehave
    with caplog.at_level(logging.INFO):
        thread, heard = _listen(platform)
        until(lambda: len(platform.asked) >= 3)
        assert not heard
        platform.preempt()
        platform.manner = None
        thread.join(60)
    assert heard
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "failed, querying it again" in said[0]


def test_a_server_that_hangs_or_dribbles_is_left_and_asked_again(platform: MetadataServer) -> None:
    released = threading.Event()
    platform.manner = endless(b"TRUE", released)
    thread, heard = _listen(platform)
    until(lambda: len(platform.asked) >= 3)
    assert not heard
    released.set()
    platform.preempt()
    platform.manner = None
    thread.join(60)
    assert heard


def test_that_there_is_an_answer_again_is_told_too(
    platform: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    platform.manner = status(503)
    with caplog.at_level(logging.INFO):
        thread, heard = _listen(platform)
        until(lambda: caplog.records)
        platform.manner = None
        until(lambda: len(caplog.records) > 1)
        assert "answers again" in caplog.records[1].getMessage()
        assert not heard
        platform.preempt()
        thread.join(60)
    assert heard
