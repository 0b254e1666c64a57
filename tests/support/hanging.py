"""A server that accepts connections and never answers, and names that resolve to it."""

import socket
import threading
from contextlib import suppress
from typing import Any, Self

import pytest


class HangingServer:
    """`with HangingServer("127.0.0.2") as server: … server.port … server.connections()`"""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def connections(self) -> int:
        """Return how many connections were made."""
        return len(self._accepted)

    def end(self) -> None:
        """Close all connections, so that nobody waits for them."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._accepted:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed by `end`
            while True:
                self._accepted.append(self._listener.accept()[0])


def resolve_to(monkeypatch: pytest.MonkeyPatch, domain: str, address: str) -> None:
    """Let `domain` and every name below it resolve to `address` in this process."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        name = str(host).lower().rstrip(".")
        inside = name == domain or name.endswith(f".{domain}")
        return resolve(address if inside else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
