"""An OpenTelemetry collector over real HTTP, which keeps the spans that it receives."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from imagefleet.producer.demo.local_http import LocalServer


class Collector(LocalServer):
    """The collector keeps the spans that it receives."""

    def __init__(self) -> None:
        spans: list[Span] = []
        self.spans = spans
        self.services: set[str] = set()
        services, lock = self.services, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                with lock:
                    for each in request.resource_spans:
                        attributes = {a.key: a.value.string_value for a in each.resource.attributes}
                        services.add(attributes["service.name"])
                        spans.extend(span for scope in each.scope_spans for span in scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return None

        super().__init__(Handler)

    def jobs(self) -> list[Span]:
        """Return the spans of attempts."""
        return self.named("imagefleet job")

    def named(self, name: str) -> list[Span]:
        """Return the spans of this name in the order in which they began."""
        spans = [span for span in self.spans if span.name == name]
        return sorted(spans, key=lambda span: span.start_time_unix_nano)
