"""Connect submitted jobs with the OpenTelemetry trace of the program that submits them.

The program decides where its spans go: this module uses the tracer that the program has set up, and
sets up none. Without one nothing is recorded, but a span that is active is still passed on, and
so is that of a caller over HTTP.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.celery_message import valid_trace_parent
from imagefleet.shared.process.extras import how_to_install

_caller: Final[ContextVar[str | None]] = ContextVar("caller's span", default=None)


def continue_trace(trace_parent: str | None) -> None:
    """Let what is submitted from now on in this context belong to the trace of a caller.

    Args:
        trace_parent: the caller's span, as `traceparent`; what has another form counts as none.
    """
    _caller.set(valid_trace_parent(trace_parent))


@contextmanager
def submission_span(jobs: int, *, enabled: bool) -> Iterator[str | None]:
    """Make a span of one submission. Yield it as `traceparent`; None if there is no trace.

    Args:
        jobs: how many jobs are submitted together.
        enabled: the setting `traces`. If it is false, nothing is imported.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    caller = _caller.get()
    if not enabled:
        yield caller
        return
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise ConfigurationError(
            f"IMAGEFLEET_TRACES needs opentelemetry; {how_to_install('traces')}"
        ) from None
    tracer = trace.get_tracer("imagefleet")
    propagator = TraceContextTextMapPropagator()
    with tracer.start_as_current_span(
        "imagefleet submit",
        context=propagator.extract({"traceparent": caller}) if caller else None,
        kind=trace.SpanKind.PRODUCER,
        attributes={"messaging.system": "imagefleet", "messaging.batch.message_count": jobs},
    ):
        carrier: dict[str, str] = {}
        propagator.inject(carrier)
        yield carrier.get("traceparent")
