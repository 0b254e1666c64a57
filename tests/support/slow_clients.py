"""Clients that send a server one byte at a time, and connect again when they are closed."""

import socket
import threading
from contextlib import suppress
from typing import Final, Self

_PAUSE_S: Final = 0.1


class SlowClients:
    """`with SlowClients(port, 500): …`: so many are connected from the first line of the block."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self.reconnected = 0
        """How often a client was closed and has connected again."""
        self._clients: list[socket.socket] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._clients = [self._connect() for _ in range(self._number)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        client.send(b"G")
        return client

    def _send(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            for number, client in enumerate(self._clients):
                if not _is_open(client):
                    client.close()
                    with suppress(OSError):  # tried again in the next round
                        self._clients[number] = self._connect()
                        self.reconnected += 1


def _is_open(client: socket.socket) -> bool:
    """Send one more byte, and return whether the server has the connection open."""
    try:
        client.send(b"E")
        client.setblocking(False)
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
