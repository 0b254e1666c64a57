"""OpenTelemetry spans of jobs: a real worker sends them to a collector over HTTP."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from imagefleet import Client, JobFailed
from imagefleet.shared.jobs.celery_message import job_message, trace_parent_of
from imagefleet.shared.jobs.request import JobRequest
from tests.support.collector import Collector
from tests.support.processes import StartWorker, until
from tests.support.receiver import Receiver, respond_with

TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STAGES = {"queued", "wait for a batch", "denoise and decode", "encode", "upload", "record"}


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
    job.result(timeout=900)
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
        job.result(timeout=900)
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
    assert producer.submit("a").result(timeout=900).images


def test_the_deliveries_of_its_callbacks_are_in_the_trace_of_a_job(
    start: StartWorker, producer: Client, collector: Collector, variables: dict[str, str]
) -> None:
    with Receiver(respond=respond_with(503, 204)) as receiver:
        start(**variables, IMAGEFLEET_CALLBACK_ALLOW="127.0.0.0/8")
        job = producer.submit("a", tenant="gold", callback_url=receiver.url)
        receiver.wait_for(2)
        tries = until(lambda: _two(collector.named("deliver callback")))
    [span] = until(collector.jobs)
    assert {each.trace_id for each in tries} == {span.trace_id}
    assert {each.parent_span_id for each in tries} == {span.span_id}
    failed, delivered = (_attributes(each) for each in tries)
    expected = {
        "imagefleet.job": job.id,
        "imagefleet.callback": f"{job.id}.succeeded",
        "imagefleet.attempt": 1,
        "imagefleet.tenant": "gold",
        "imagefleet.status": 503,
    }
    assert failed == expected
    assert delivered == expected | {"imagefleet.attempt": 2, "imagefleet.status": 204}
    code = tries[0].status
    assert [each.status.code for each in tries] == [code.STATUS_CODE_ERROR, code.STATUS_CODE_UNSET]


def test_the_delivery_of_a_callback_at_the_start_is_below_the_submission(
    start: StartWorker, producer: Client, collector: Collector, variables: dict[str, str]
) -> None:
    tracing = Client(settings=producer.settings.model_copy(update={"traces": True}))
    with Receiver() as receiver:
        start(**variables, IMAGEFLEET_CALLBACK_ALLOW="127.0.0.0/8")
        with TracerProvider().get_tracer("web").start_as_current_span("request") as request:
            tracing.submit("a", callback_url=receiver.url, callback_events=["started"])
        receiver.wait_for(1)
        [delivered] = until(lambda: collector.named("deliver callback"))
    span_id = trace.format_span_id(request.get_span_context().span_id)
    assert delivered.parent_span_id.hex() == span_id


def _two(spans: list[Span]) -> list[Span] | None:
    return spans if len(spans) >= 2 else None


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
