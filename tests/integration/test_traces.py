"""OpenTelemetry spans of jobs: a real worker sends them to a collector over HTTP."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from imagefleet import Client, JobFailed
from imagefleet.producer.demo.local_http import LocalServer
from imagefleet.shared.jobs.celery_message import job_message, trace_parent_of
from imagefleet.shared.jobs.request import JobRequest
from tests.support.processes import StartWorker, until

TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STAGES = {"queued", "wait for a batch", "denoise and decode", "encode", "upload", "record"}


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
        return [span for span in self.spans if span.name == "imagefleet job"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def variables(collector: Collector) -> dict[str, str]:
    return {
        "IMAGEFLEET_TRACES": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def _attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes}


def test_the_spans_of_a_job_are_in_the_trace_of_the_program_that_submitted_it(
    start: StartWorker, producer: Client, collector: Collector, variables: dict[str, str]
) -> None:
    start(**variables)
    tracing = Client(settings=producer.settings.model_copy(update={"traces": True}))
    with TracerProvider().get_tracer("web").start_as_current_span("request") as request:
        job = tracing.submit("a red star", tenant="gold", num_images_per_prompt=2)
    job.result(timeout=60)
    [span] = until(collector.jobs)
    context = request.get_span_context()
    assert span.trace_id.hex() == trace.format_trace_id(context.trace_id)
    assert span.parent_span_id.hex() == trace.format_span_id(context.span_id)
    assert _attributes(span) | {"imagefleet.claim": ""} == {
        "imagefleet.job": job.id,
        "imagefleet.attempt": 1,
        "imagefleet.claim": "",
        "imagefleet.tenant": "gold",
        "imagefleet.images": 2,
    }
    until(lambda: {each.name for each in collector.spans} >= STAGES)
    stages = [each for each in collector.spans if each.name != "imagefleet job"]
    assert {each.parent_span_id for each in stages} == {span.span_id}
    assert [each.name for each in stages].count("upload") == 2
    assert all(each.end_time_unix_nano >= each.start_time_unix_nano for each in stages)
    assert collector.services == {"imagefleet-worker"}


def test_a_failed_job_says_why_and_a_draining_worker_sends_what_it_has(
    start: StartWorker, producer: Client, collector: Collector, variables: dict[str, str]
) -> None:
    worker = start(**{**variables, "OTEL_BSP_SCHEDULE_DELAY": "60000"})
    job = producer.submit("a", image="jobs/nothing/0.png")
    with pytest.raises(JobFailed):
        job.result(timeout=60)
    worker.terminate()
    assert worker.wait() == 0
    [span] = collector.jobs()
    assert _attributes(span)["imagefleet.error"] == "invalid_input"
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert span.parent_span_id == b""  # the producer makes no traces


def test_a_collector_that_is_away_disturbs_no_job(
    start: StartWorker, producer: Client, variables: dict[str, str]
) -> None:
    start(**{**variables, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert producer.submit("a").result(timeout=60).images


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (TRACE_PARENT, TRACE_PARENT),
        (None, None),
        ("00-nothing", None),
        ("x" * 100_000, None),
    ],
)
def test_only_a_header_in_the_form_of_w3c_is_read(header: str | None, found: str | None) -> None:
    message = job_message("a", JobRequest(prompt="a", seed=1), "q", header)
    assert trace_parent_of(message) == found


@pytest.mark.parametrize(
    "message", ["traceparent", '["traceparent"]', '{"headers": "traceparent"}']
)
def test_a_damaged_message_has_no_trace(message: str) -> None:
    assert trace_parent_of(message) is None
