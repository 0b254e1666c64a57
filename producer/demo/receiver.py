"""A callback receiver: an HTTP server on this machine that believes only signed messages."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler

from imagefleet.producer.demo.local_http import LocalServer
from imagefleet.shared.webhooks.signature import InvalidSignature, verify


class CallbackReceiver(LocalServer):
    """`with CallbackReceiver(secret) as receiver: … receiver.url`"""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._seen: dict[str, str] = {}
        self._refused = 0
        super().__init__(self._door())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/callbacks"

    def counts(self) -> Counter[str]:
        """Verified callbacks by type; the same webhook-id counts once."""
        with self._lock:
            return Counter(self._seen.values())

    @property
    def refused(self) -> int:
        """Callbacks whose signature did not verify."""
        return self._refused

    def _note(self, headers: dict[str, str], body: bytes) -> bool:
        try:
            verify(headers, body, [self._secret])
        except InvalidSignature:
            self._refused += 1
            return False
        with self._lock:
            self._seen[headers["webhook-id"]] = json.loads(body)["type"]
        return True

    def _door(self) -> type[BaseHTTPRequestHandler]:
        note = self._note

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.send_response(204 if note(headers, body) else 401)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Door
