"""A callback receiver over real HTTP(S), with the manners a test asks for."""

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from imagefleet.producer.demo.local_http import LocalServer
from imagefleet.shared.webhooks.signature import InvalidSignature, verify


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    verified: bool


Manner = Callable[[BaseHTTPRequestHandler, int], None]
"""How to answer request number n (from 1)."""


def answers(*statuses: int, **headers: str) -> Manner:
    """Status by status, the last one for ever."""

    def manner(door: BaseHTTPRequestHandler, number: int) -> None:
        door.send_response(statuses[min(number, len(statuses)) - 1])
        for name, value in headers.items():
            door.send_header(name, value)
        door.send_header("content-length", "0")
        door.end_headers()

    return manner


class Receiver(LocalServer):
    """`with Receiver([secret]) as receiver: … receiver.url … receiver.deliveries`"""

    def __init__(
        self,
        secrets: Sequence[str] = (),
        manner: Manner | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._secrets = secrets
        self._manner = manner or answers(204)
        self._changed = threading.Condition()
        self.deliveries: list[Delivery] = []
        super().__init__(self._door())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/callbacks"

    def wait_for(self, count: int, timeout_s: float = 60.0) -> list[Delivery]:
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.deliveries) >= count, timeout_s)
            assert arrived, f"{len(self.deliveries)} of {count} deliveries within {timeout_s} s"
            return list(self.deliveries)

    def _note(self, path: str, headers: dict[str, str], body: bytes) -> int:
        try:
            verify(headers, body, self._secrets)
            verified = True
        except InvalidSignature:
            verified = False
        with self._changed:
            self.deliveries.append(
                Delivery(path=path, headers=headers, body=body, verified=verified)
            )
            self._changed.notify_all()
            return len(self.deliveries)

    def _door(self) -> type[BaseHTTPRequestHandler]:
        note, manner = self._note, self._manner

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                manner(self, note(self.path, headers, body))

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Door
