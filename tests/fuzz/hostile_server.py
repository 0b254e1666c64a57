"""Answer HTTP requests with the bytes of a case, on several loopback addresses.

Each address is a host of its own to the worker, so that one that hangs does not delay the others.
"""

import socket
import socketserver
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

from tests.fuzz.answers import URL
from tests.fuzz.cases import AnswerCase

_HOSTS: Final = 24
_MAX_HEAD_BYTES: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
_IMAGE: Final = "/valid.png"


class HostileServers:
    """The servers answer by the path of a request: the id of a case."""

    def __init__(self) -> None:
        self._answers: dict[str, AnswerCase] = {}
        self.requests = 0
        """Requests that were answered."""
        self._servers = [_Server(f"127.0.1.{host + 1}", self) for host in range(_HOSTS)]

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def set_answers(self, cases: Iterable[AnswerCase]) -> None:
        """Answer with these cases and no others."""
        self._answers = {f"/{case.id}": case for case in cases}

    def url(self, case: AnswerCase) -> str:
        """Return the address at which `case` is the answer."""
        host, port = self._servers[zlib.crc32(case.id.encode()) % _HOSTS].address
        return f"http://{host}:{port}/{case.id}"

    def respelled_url(self, case: AnswerCase, number: int) -> str:
        """Return an address at which `case` is the answer. All are of one host, in another spelling
        for each number."""
        host, port = self._servers[0].address
        network, _, last = host.rpartition(".")
        return f"http://{network}.{int(last):#0{3 + number}x}:{port}/{case.id}"

    def answer(self, path: str, connection: socket.socket, host: str) -> None:
        """Write the answer for `path` to `connection`."""
        self.requests += 1
        case = self._answers.get(path)
        if case is None:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        url = f"http://{host}{path}".encode()
        for data, pause_s in _pieces(case):
            connection.sendall(data.replace(URL, url))
            time.sleep(pause_s)
        time.sleep(case.hang_s)
        if case.reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _pieces(case: AnswerCase) -> Iterator[tuple[bytes, float]]:
    for part in case.parts:
        for _ in range(part.repeat):
            yield part.data, part.pause_s


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, owner: HostileServers) -> None:
        super().__init__((host, 0), _handler(owner))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server_address[:2]
        return str(host), int(port)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: the worker closes connections early."""


def _handler(owner: HostileServers) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(60)
            head = b""
            with suppress(OSError):
                while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD_BYTES:
                    if not (more := self.request.recv(4_096)):
                        return
                    head += more
                words = head.split(b" ", 2)
                path = words[1].decode("latin-1") if len(words) > 1 else ""
                host, port = self.request.getsockname()
                owner.answer(path, self.request, f"{host}:{port}")

    return Handler
