"""Make OpenTelemetry spans of the jobs of this worker, and send them by OTLP over HTTP.

Nothing is made, and OpenTelemetry is not imported, before `start_tracing`. The exporter reads the
usual variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` …
Spans that cannot be sent are dropped, and no job waits for them.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from imagefleet.shared.errors import ConfigurationError, ImagefleetError
from imagefleet.shared.process.extras import how_to_install

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_NS: Final = 1_000_000_000
_FLUSH_MS: Final = 3_000
_provider: "TracerProvider | None" = None


def start_tracing(worker: str) -> Callable[[], object]:
    """Make spans from now on. Return a function that sends those that were not sent yet, within
    `_FLUSH_MS`.

    Args:
        worker: the name of this worker.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    global _provider
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(
            f"IMAGEFLEET_TRACES needs {error.name}; {how_to_install('traces')}"
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME", "imagefleet-worker")
    resource = Resource.create({"service.name": name, "service.instance.id": worker})
    _provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return partial(_provider.force_flush, _FLUSH_MS)


@contextmanager
def job_span(trace_parent: str | None, began_at: float, **attributes: Any) -> Iterator[None]:
    """Make a span of an attempt, from `began_at` (Unix seconds) to the end of the block.

    Args:
        trace_parent: the span of the submission, as `traceparent`; None begins a trace.
        attributes: those of the span; they get the prefix `imagefleet.`.
    """
    if _provider is None:
        yield
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode

    with _tracer().start_as_current_span(
        "imagefleet job",
        context=_context_below(trace_parent),
        kind=SpanKind.CONSUMER,
        start_time=round(began_at * _NS),
        attributes=_prefixed(attributes),
        record_exception=False,  # its text may hold what strangers wrote; the record has it
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except ImagefleetError as error:
            span.set_attribute("imagefleet.error", error.code)
            span.set_status(Status(StatusCode.ERROR, error.code))
            raise


def stage_span(name: str) -> AbstractContextManager[object]:
    """Make a span of the block, below that of the attempt that this thread executes."""
    if _provider is None:
        return nullcontext()
    span: AbstractContextManager[object] = _tracer().start_as_current_span(
        name, record_exception=False
    )
    return span


def add_span(name: str, start: float, end: float) -> None:
    """Add a span between two times that have passed, in Unix seconds."""
    if _provider is not None:
        span = _tracer().start_span(name, start_time=round(start * _NS))
        span.end(end_time=round(max(start, end) * _NS))


def current_trace_parent() -> str | None:
    """Return the span of this thread as W3C's `traceparent`; None if there is none."""
    if _provider is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def add_delivery_span(
    trace_parent: str, start: float, end: float, *, error: str | None, **attributes: Any
) -> None:
    """Add the span of one try to deliver a callback, between two times in Unix seconds.

    Args:
        trace_parent: the span in which the event happened; empty: it begins a trace.
        error: why it was not delivered; None if it was.
        attributes: those of the span; they get the prefix `imagefleet.`.
    """
    if _provider is None:
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode

    span = _tracer().start_span(
        "deliver callback",
        context=_context_below(trace_parent),
        kind=SpanKind.CLIENT,
        start_time=round(start * _NS),
        attributes=_prefixed(attributes),
    )
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=round(max(start, end) * _NS))


def _context_below(trace_parent: str | None) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": trace_parent} if trace_parent else {}
    return TraceContextTextMapPropagator().extract(carrier)


def _tracer() -> Any:
    assert _provider is not None
    return _provider.get_tracer("imagefleet")


def _prefixed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"imagefleet.{name}": each for name, each in attributes.items() if each is not None}
