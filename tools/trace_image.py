"""Draw the whole trace of one job: `python -m tools.trace_image docs/trace.svg`.

A Redis, a worker with the bundled model, a receiver of callbacks and an OpenTelemetry collector
start. One job is submitted inside a span of this program, and the spans that the collector got
become the image: nothing of it is drawn by hand.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from imagefleet import Client
from imagefleet.producer.demo.processes import DemoProcess
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.settings.settings import Settings
from tests.support.collector import Collector
from tests.support.processes import until
from tests.support.receiver import Receiver

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 900, 24, 210, 90, 44
_COLOURS: Final[Mapping[str, str]] = {
    "denoise and decode": "#188038",
    "queued": "#8a8a8a",
    "wait for a batch": "#8a8a8a",
    "deliver callback": "#b3261e",
}
_COLOUR = "#1a73e8"


def main(out: Path) -> None:
    """Write the image to `out`."""
    out.write_text(timeline(trace_of_one_job()))


def trace_of_one_job() -> list[Span]:
    """Return the spans of one job's trace, from its submission to its callback."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        server = running.enter_context(LocalRedisServer(folder / "redis"))
        collector = running.enter_context(Collector())
        receiver = running.enter_context(Receiver())
        endpoint = f"http://127.0.0.1:{collector.port}"
        worker = DemoProcess(
            "imagefleet.worker",
            {
                "IMAGEFLEET_REDIS_URL": server.url,
                "IMAGEFLEET_MODEL": "shapes",
                "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
                "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
                "IMAGEFLEET_TRACES": "true",
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            },
            folder / "worker.log",
        )
        running.callback(worker.stop)
        worker.start()
        client = running.enter_context(Client(settings=Settings(redis_url=server.url, traces=True)))
        client.submit("a red star on a white background").result(timeout=600)  # the worker is up
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
        trace.set_tracer_provider(provider)
        with provider.get_tracer("web").start_as_current_span("request of the program") as request:
            job = client.submit(
                "a red star on a white background",
                callback_url=receiver.url,
                num_images_per_prompt=2,
            )
            job.result(timeout=600)
        trace_id = trace.format_trace_id(request.get_span_context().trace_id)
        receiver.wait_for(1)
        until(lambda: collector.named("deliver callback"))
        until(lambda: len(collector.jobs()) == 2)
        return [span for span in collector.spans if span.trace_id.hex() == trace_id]


def timeline(spans: Sequence[Span]) -> str:
    """Return the spans of one trace as SVG: a row for each, below its parent, by its start."""
    began = min(span.start_time_unix_nano for span in spans)
    ended = max(span.end_time_unix_nano for span in spans)
    per_ns = (_WIDTH - _LEFT - _RIGHT) / (ended - began)
    rows = _rows(spans, b"", 0)
    height = _TOP + _ROW * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">One job, {(ended - began) / 1e6:,.0f} ms</text>',
    ]
    for row, (span, depth) in enumerate(rows):
        y = _TOP + _ROW * row
        x = _LEFT + per_ns * (span.start_time_unix_nano - began)
        width = max(1.5, per_ns * (span.end_time_unix_nano - span.start_time_unix_nano))
        ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        colour = _COLOURS.get(span.name, _COLOUR)
        parts += [
            f'<line x1="10" x2="{_WIDTH - 10}" y1="{y + 15}" y2="{y + 15}" stroke="#eeeeee"/>',
            f'<text x="{10 + 14 * depth}" y="{y + 10}">{escape(span.name)}</text>',
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="12" fill="{colour}"/>',
            f'<text x="{x + width + 6:.1f}" y="{y + 10}" fill="#555555">{ms:,.1f} ms</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _rows(spans: Sequence[Span], parent: bytes, depth: int) -> list[tuple[Span, int]]:
    """Return the spans below `parent` with their depth, each followed by those below it."""
    below = sorted(
        (span for span in spans if span.parent_span_id == parent),
        key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano),
    )
    return [
        row for span in below for row in [(span, depth), *_rows(spans, span.span_id, depth + 1)]
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
