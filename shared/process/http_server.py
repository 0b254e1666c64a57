"""Serve a WSGI application such that slow and silent clients keep nobody from an answer.

Input: an application whose answers are pages. Output: a port. One thread owns all sockets and waits
for none of them; a few others compute the answers. It speaks HTTP/1.0 without bodies of requests,
keep-alive or TLS: it is for Prometheus and the probes of Kubernetes.
"""

import errno
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 256
"""For a further one, the oldest that waits for its client is closed."""
HEAD_S: Final = 5.0
"""A client has this long for the whole head of its request, however it spreads the bytes."""
_SEND_S: Final = 10.0
"""A client has this long to take the whole answer."""
_MAX_HEAD_BYTES: Final = 16 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"
_THREADS: Final = 8
"""So many answers are computed at the same time."""
_ACCEPTED_AT_ONCE: Final = 32
"""Heads that have arrived are read before more connections are accepted than these."""
_BACKLOG: Final = 1024
_NO_DESCRIPTOR_S: Final = 0.01
_TICK_S: Final = 0.25
"""Connections are closed at most this long after their time is over."""


class HttpServer:
    """Answers in threads of its own from `start` until `stop`, or until the process ends."""

    def __init__(self, host: str, port: int, application: "WSGIApplication") -> None:
        """Listen on `port`, or on a free one if it is 0. Raises OSError."""
        self._listener = _listen(host, port)
        self.port: Final = int(self._listener.getsockname()[1])
        self._application: Final = _Application(application, host, self.port)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[_Connection, None] = {}
        """It holds all open ones, the oldest first. Only the thread of the loop writes it."""
        self._requests = _Requests()
        self._answers: SimpleQueue[tuple[_Connection, bytes]] = SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._stopped = threading.Event()
        self._loop_thread = threading.Thread(target=self._loop, name="http", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        for number in range(_THREADS):
            threading.Thread(target=self._compute, name=f"http-{number}", daemon=True).start()
        self._loop_thread.start()

    def stop(self) -> None:
        """Close the port and all connections. Answers that are being computed are dropped."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._wake_loop()
        self._loop_thread.join()
        self._wake.close()
        self._woken.close()
        for _ in range(_THREADS):
            self._requests.put(None)

    def connections(self) -> int:
        """Return how many connections are open now."""
        return len(self._connections)

    def _loop(self) -> None:
        for each in (self._listener, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._wake.setblocking(False)
        next_tick = 0.0
        while not self._stopped.is_set():
            ready = self._selector.select(_TICK_S if self._connections else None)
            for key, _ in ready:
                if key.data is not None:
                    key.data()
            self._send_answers()
            if any(key.fileobj is self._listener for key, _ in ready):
                self._accept()
            if (now := time.monotonic()) >= next_tick:
                next_tick = now + _TICK_S
                for late in [each for each in self._connections if each.deadline < now]:
                    self._close(late)
        self._listener.close()
        for connection in list(self._connections):
            self._close(connection)
        self._selector.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # no file descriptor is left
                    self._make_room()
                if error.errno != errno.ECONNABORTED:
                    self._stopped.wait(_NO_DESCRIPTOR_S)
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                self._make_room()
            accepted.setblocking(False)
            connection = _Connection(accepted, str(address[0]))
            self._connections[connection] = None
            self._await(connection, selectors.EVENT_READ, self._read)
            self._read(connection)

    def _make_room(self) -> None:
        """Close the oldest connection that waits for its client, else the oldest of all."""
        waiting = (each for each in self._connections if not each.is_requested)
        oldest = next(waiting, None) or next(iter(self._connections), None)
        if oldest is not None:
            self._close(oldest)

    def _await(
        self, connection: "_Connection", event: int, then: Callable[["_Connection"], None]
    ) -> None:
        self._selector.register(connection.socket, event, partial(then, connection))

    def _read(self, connection: "_Connection") -> None:
        try:
            received = connection.socket.recv(_MAX_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        connection.head += received
        if _END_OF_HEAD in connection.head:
            self._selector.unregister(connection.socket)
            connection.is_requested = True
            connection.deadline = float("inf")
            self._requests.put(connection)
        elif not received or len(connection.head) > _MAX_HEAD_BYTES:
            self._close(connection)

    def _compute(self) -> None:
        """Compute answers, in a thread of its own."""
        while (connection := self._requests.get()) is not None:
            try:
                answer = self._application.answer(bytes(connection.head), connection.address)
            except Exception:
                log.exception("a request cannot be answered")
                answer = b""
            self._answers.put((connection, answer))
            self._wake_loop()

    def _wake_loop(self) -> None:
        with suppress(OSError):  # it is woken already, or has ended
            self._wake.send(b".")

    def _send_answers(self) -> None:
        """Begin to send the answers that were computed."""
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while not self._answers.empty():
            connection, answer = self._answers.get()
            if not connection.is_closed:
                connection.answer = memoryview(answer)
                connection.is_requested = False
                connection.deadline = time.monotonic() + _SEND_S
                self._await(connection, selectors.EVENT_WRITE, self._send)
                self._send(connection)

    def _send(self, connection: "_Connection") -> None:
        try:
            connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        if not connection.answer:
            self._close(connection)

    def _close(self, connection: "_Connection") -> None:
        with suppress(KeyError):  # its answer is being computed
            self._selector.unregister(connection.socket)
        del self._connections[connection]
        self._requests.drop(connection)
        connection.is_closed = True
        connection.head = bytearray()
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.close()


class _Connection:
    """The connection belongs to the thread of the loop; the others read `head`."""

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.socket = accepted
        self.address = address
        self.head = bytearray()
        self.answer = memoryview(b"")
        self.deadline = time.monotonic() + HEAD_S
        self.is_requested = False
        """It says whether the connection waits for its answer, and not for its client."""
        self.is_closed = False


class _Requests:
    """The connections that wait for an answer, all of them open. The first one comes first."""

    def __init__(self) -> None:
        self._waiting: deque[_Connection | None] = deque()
        self._changed = threading.Condition()

    def put(self, connection: "_Connection | None") -> None:
        with self._changed:
            self._waiting.append(connection)
            self._changed.notify()

    def get(self) -> "_Connection | None":
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            return self._waiting.popleft()

    def drop(self, connection: "_Connection") -> None:
        with self._changed, suppress(ValueError):  # it does not wait
            self._waiting.remove(connection)


class _Application:
    """Turns heads of requests into answers by WSGI. It is the server that wsgiref's class knows."""

    def __init__(self, application: "WSGIApplication", host: str, port: int) -> None:
        self._application = application
        self.base_environ = {
            "SERVER_NAME": host,
            "SERVER_PORT": str(port),
            "GATEWAY_INTERFACE": "CGI/1.1",
            "REMOTE_HOST": "",
            "CONTENT_LENGTH": "",
            "SCRIPT_NAME": "",
        }

    def get_app(self) -> "WSGIApplication":
        """Return the application."""
        return self._application

    def answer(self, head: bytes, address: str) -> bytes:
        """Return the whole answer to a request from this address."""
        written = BytesIO()
        # wsgiref's types want a socket, and a server with one.
        files: Any = (BytesIO(head), written)
        server: Any = self
        _Exchange(files, (address, 0), server)
        return written.getvalue()


class _Exchange(WSGIRequestHandler):
    """Answers one request that was read already; `request` has the files to read and to write."""

    def setup(self) -> None:
        """Take the files from the place of the socket."""
        files: Any = self.request
        self.rfile, self.wfile = files

    def finish(self) -> None:
        """Leave the files open for the caller."""

    def log_message(self, *_: object) -> None:
        """Log nothing: Prometheus asks every few seconds."""


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
