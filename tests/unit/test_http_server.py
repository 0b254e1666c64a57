"""The HTTP server of workers and of the exporter: no client keeps another from its answer."""

import errno
import gc
import selectors
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from imagefleet.shared.process import http_server
from imagefleet.shared.process.http_server import MAX_CONNECTIONS, HttpServer
from tests.support.http_client import http_get
from tests.support.processes import until
from tests.support.slow_clients import SlowClients

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PAGE = b"x" * 20_000_000
"""More than the buffers of a connection hold."""


def _answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/fails":
        raise RuntimeError("a broken page")
    start("200 OK", [])
    return [PAGE if environ["PATH_INFO"] == "/large" else b"ok"]


@contextmanager
def _started(application: "WSGIApplication" = _answer) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _serving(application: "WSGIApplication" = _answer) -> Iterator[int]:
    with _started(application) as server:
        yield server.port


@contextmanager
def _connected(port: int, number: int, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        clients = []
        for _ in range(number):
            client = socket.create_connection(("127.0.0.1", port), timeout=900)
            clients.append(stack.enter_context(client))
            client.sendall(sent)
        yield clients


def test_every_probe_is_answered_beside_500_clients_that_send_a_byte_at_a_time() -> None:
    with _serving() as port, SlowClients(port, 500) as clients:
        probes = 0
        while probes < 100 or clients.reconnected < 500:
            assert http_get(port, "/healthz") == (200, "ok")
            probes += 1


def test_every_probe_is_answered_beside_clients_that_do_not_read() -> None:
    request = b"GET /large HTTP/1.0\r\n\r\n"
    with _serving() as port, _connected(port, 20, request):
        assert http_get(port, "/healthz") == (200, "ok")


def test_the_oldest_unfinished_connection_makes_room() -> None:
    with _serving() as port, _connected(port, MAX_CONNECTIONS + 1, b"GET") as clients:
        assert clients[0].recv(1) == b""
        clients[-1].sendall(b" / HTTP/1.0\r\n\r\n")
        assert clients[-1].recv(12) == b"HTTP/1.0 200"


def test_a_request_that_is_being_answered_does_not_make_room() -> None:
    reached, end = threading.Event(), threading.Event()

    def wait(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        reached.set()
        end.wait(300)
        return _answer(environ, start)

    with _serving(wait) as port, _connected(port, 1, b"GET / HTTP/1.0\r\n\r\n") as [first]:
        assert reached.wait(300)
        with _connected(port, MAX_CONNECTIONS + 5, b"GET") as others:
            assert others[0].recv(1) == b""
            end.set()
            assert first.recv(12) == b"HTTP/1.0 200"


def test_requests_that_made_room_are_forgotten_while_answers_hang() -> None:
    end = threading.Event()

    def wait(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        end.wait(900)
        return _answer(environ, start)

    with (
        _serving(wait) as port,
        _connected(port, MAX_CONNECTIONS + 60, b"GET / HTTP/1.0\r\n\r\n") as clients,
        selectors.DefaultSelector() as closed,
    ):
        for client in clients:
            closed.register(client, selectors.EVENT_READ)
        until(lambda: len(closed.select(0)) >= 60)
        kept = [each for each in gc.get_objects() if isinstance(each, http_server._Connection)]
        assert len(kept) <= MAX_CONNECTIONS + 8 + 1  # open, being answered, just closed
        end.set()


class _AbortedOnce(socket.socket):
    """The second client of this listener is gone before it is accepted."""

    accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        result = super().accept()
        self.accepted += 1
        if self.accepted == 2:
            result[0].close()
            raise OSError(errno.ECONNABORTED, "gone")
        return result


def test_a_client_that_is_gone_closes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(host: str, port: int) -> socket.socket:
        listener = _AbortedOnce(socket.AF_INET)
        listener.bind((host, port))
        listener.listen()
        return listener

    monkeypatch.setattr(http_server, "_listen", listen)
    with _serving() as port, _connected(port, 1, b"GET") as [first]:
        with _connected(port, 1, b"") as [gone]:
            assert gone.recv(1) == b""
        first.sendall(b" / HTTP/1.0\r\n\r\n")
        assert first.recv(12) == b"HTTP/1.0 200"


def test_the_whole_head_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.5)
    with _serving() as port, _connected(port, 1, b"GET / HTTP/1.0\r\nX: ") as [client]:
        client.setblocking(False)
        until(lambda: _ends_after_another_byte(client))


def _ends_after_another_byte(client: socket.socket) -> bool:
    try:
        client.send(b"x")
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_client_must_take_its_answer_within_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_SEND_S", 0.2)
    with (
        _started() as server,
        _connected(server.port, 1, b"GET /large HTTP/1.0\r\n\r\n") as [client],
    ):
        assert client.recv(12) == b"HTTP/1.0 200"
        until(lambda: server.connections() == 0)
        with client.makefile("rb") as rest:
            assert len(rest.read()) < len(PAGE)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"nonsense\r\n\r\n", b"<!DOCTYPE HT"),
        (b"GET /fails HTTP/1.0\r\n\r\n", b"HTTP/1.0 500"),
        (b"x" * 40_000, b""),
        (b"\r\n\r\n", b""),
    ],
)
def test_a_wrong_request_harms_no_other(sent: bytes, answer: bytes) -> None:
    with _serving() as port:
        with _connected(port, 1, sent) as [client]:
            assert _received(client).startswith(answer)
        assert http_get(port, "/healthz") == (200, "ok")


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(12)
    except ConnectionResetError:  # more was sent than the server reads
        return b""


def test_stop_closes_the_port_and_what_is_open() -> None:
    with _started() as server, _connected(server.port, 1, b"GET") as [client]:
        until(lambda: server.connections() == 1)
        server.stop()
        assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
