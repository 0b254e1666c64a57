"""The frame of the small HTTP servers of the demo and the tests: a port of its own, a thread, and a
clean end. What is asked and answered there it does not know."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

_LOOK_S: Final = 0.02
"""How often it looks whether it should end."""


class LocalServer:
    """`with` it is open. What it answers is its `door`'s."""

    def __init__(self, door: type[BaseHTTPRequestHandler]) -> None:
        self._server = _QuietServer(("127.0.0.1", 0), door)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_S,), daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """The default of 5 resets connections when a fleet calls at once."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what some of the tests are about."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
