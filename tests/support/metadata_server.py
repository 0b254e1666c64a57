"""Google Cloud's metadata server with one value, `preempted`, over real HTTP.

https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from imagefleet.producer.demo.local_http import LocalServer

Respond = Callable[[BaseHTTPRequestHandler], None]
"""A function that writes the response in place of the server."""


class MetadataServer(LocalServer):
    """The server reports FALSE until `preempt` is called, and then TRUE.

    `with MetadataServer() as platform: … platform.url … platform.preempt()`
    """

    def __init__(self) -> None:
        self.respond: Respond | None = None
        """What writes the responses, if not the server itself."""
        self.requests: list[dict[str, str]] = []
        """The requests so far: their query parameters and their `metadata-flavor` as `flavor`."""
        self._preempted = False
        self._changed = threading.Condition()
        super().__init__(self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/computeMetadata/v1/instance/preempted"

    def preempt(self) -> None:
        with self._changed:
            self._preempted = True
            self._changed.notify_all()

    def _value(self, query: dict[str, str]) -> tuple[str, str]:
        """Wait until the ETag differs from `last_etag`. Return the value and its ETag."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._etag() != query.get("last_etag"), float(query.get("timeout_sec", 0))
            )
            return str(self._preempted).upper(), self._etag()

    def _etag(self) -> str:
        return "c0ffee" if self._preempted else "decaf"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                known = {name: values[-1] for name, values in query.items()}
                flavor = self.headers.get("metadata-flavor", "")
                server.requests.append({**known, "flavor": flavor})
                if server.respond is not None:
                    server.respond(self)
                elif flavor != "Google" or not server.url.endswith(path):
                    self.send_error(403 if flavor != "Google" else 404)
                else:
                    self._send(*server._value(known))

            def _send(self, value: str, etag: str) -> None:
                self.send_response(200)
                self.send_header("etag", etag)
                self.send_header("content-length", str(len(value)))
                self.end_headers()
                self.wfile.write(value.encode())

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Handler
