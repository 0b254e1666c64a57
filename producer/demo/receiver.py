"""Receive callbacks on this machine, and accept only those with a valid signature."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler

from imagefleet.producer.demo.local_http import LocalServer
from imagefleet.shared.webhooks.signature import InvalidSignature, verify


class CallbackReceiver(LocalServer):
    """The receiver counts verified callbacks.

    with CallbackReceiver(secret) as receiver:
        client.submit(prompt, callback_url=receiver.url)
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._types: dict[str, str] = {}
        self._refused = 0
        super().__init__(self._handler())

    @property
    def url(self) -> str:
        """The callback address."""
        return f"http://127.0.0.1:{self.port}/callbacks"

    def counts(self) -> Counter[str]:
        """Return the number of verified callbacks by type. A repeated webhook-id counts once."""
        with self._lock:
            return Counter(self._types.values())

    @property
    def refused(self) -> int:
        """The number of callbacks whose signature did not verify."""
        return self._refused

    def _accept(self, headers: dict[str, str], body: bytes) -> bool:
        try:
            verify(headers, body, [self._secret])
        except InvalidSignature:
            self._refused += 1
            return False
        with self._lock:
            self._types[headers["webhook-id"]] = json.loads(body)["type"]
        return True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        accept = self._accept

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.send_response(204 if accept(headers, body) else 401)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Handler
