"""Google Cloud's metadata server, as far as one value of it goes, over real HTTP.

https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from imagefleet.producer.demo.local_http import LocalServer

Manner = Callable[[BaseHTTPRequestHandler], None]
"""Who answers instead."""


class MetadataServer(LocalServer):
    """`with MetadataServer() as platform: … platform.url … platform.preempt()`"""

    def __init__(self) -> None:
        self.manner: Manner | None = None
        """In the place of a well-behaved answer."""
        self.asked: list[dict[str, str]] = []
        """The questions so far: their query and their `metadata-flavor`."""
        self._preempted = False
        self._changed = threading.Condition()
        super().__init__(self._door())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/computeMetadata/v1/instance/preempted"

    def preempt(self) -> None:
        with self._changed:
            self._preempted = True
            self._changed.notify_all()

    def _value(self, query: dict[str, str]) -> tuple[str, str]:
        """The value and its tag, once the tag is another than the one that is known."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._tag() != query.get("last_etag"), float(query.get("timeout_sec", 0))
            )
            return str(self._preempted).upper(), self._tag()

    def _tag(self) -> str:
        return "c0ffee" if self._preempted else "decaf"

    def _door(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                question = {name: values[-1] for name, values in query.items()}
                flavor = self.headers.get("metadata-flavor", "")
                server.asked.append({**question, "flavor": flavor})
                if server.manner is not None:
                    server.manner(self)
                elif flavor != "Google" or not server.url.endswith(path):
                    self.send_error(403 if flavor != "Google" else 404)
                else:
                    self._say(*server._value(question))

            def _say(self, value: str, tag: str) -> None:
                self.send_response(200)
                self.send_header("etag", tag)
                self.send_header("content-length", str(len(value)))
                self.end_headers()
                self.wfile.write(value.encode())

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Door
