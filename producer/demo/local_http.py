"""Serve HTTP on a free port of this machine, for the demo and the tests.

Input: a request handler class. Output: a server that answers with it.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_POLL_S: Final = 0.02
"""Seconds between two checks whether the server should stop."""


class LocalServer:
    """An HTTP server on 127.0.0.1 that runs inside a `with` block and answers with `handler`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """The default of 5 resets connections when many workers connect at once."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore OSError: some tests let clients close the connection early."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
