"""A webhook receiver over real HTTP or HTTPS that responds as a test wants."""

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


Respond = Callable[[BaseHTTPRequestHandler, int], None]
"""A function that writes the response to request number n, which counts from 1."""


def respond_with(*statuses: int, **headers: str) -> Respond:
    """Respond with one status after the other. The last one repeats."""

    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(statuses[min(number, len(statuses)) - 1])
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return respond


class Receiver(LocalServer):
    """The receiver records every request and responds with `respond`, by default with 204.

    `with Receiver([secret]) as receiver: … receiver.url … receiver.deliveries`
    """

    def __init__(
        self,
        secrets: Sequence[str] = (),
        respond: Respond | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._secrets = secrets
        self._respond = respond or respond_with(204)
        self._changed = threading.Condition()
        self.deliveries: list[Delivery] = []
        super().__init__(self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/callbacks"

    def wait_for(self, count: int, timeout_s: float = 900) -> list[Delivery]:
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.deliveries) >= count, timeout_s)
            assert arrived, f"{len(self.deliveries)} of {count} deliveries within {timeout_s} s"
            return list(self.deliveries)

    def _record(self, path: str, headers: dict[str, str], body: bytes) -> int:
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

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        record, respond = self._record, self._respond

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                respond(self, record(self.path, headers, body))

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Handler
