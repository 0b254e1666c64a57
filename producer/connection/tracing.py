"""Connect submitted jobs with the OpenTelemetry trace of the program that submits them.

The program decides where its spans go: this module uses the tracer that the program has set up, and
sets up none. Without one nothing is recorded, but a span that is active is still passed on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.extras import how_to_install


@contextmanager
def submission_span(jobs: int, *, enabled: bool) -> Iterator[str | None]:
    """Make a span of one submission. Yield it as `traceparent`; None if there is no trace.

    Args:
        jobs: how many jobs are submitted together.
        enabled: the setting `traces`. If it is false, nothing is imported.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    if not enabled:
        yield None
        return
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise ConfigurationError(
            f"IMAGEFLEET_TRACES needs opentelemetry; {how_to_install('traces')}"
        ) from None
    tracer = trace.get_tracer("imagefleet")
    with tracer.start_as_current_span(
        "imagefleet submit",
        kind=trace.SpanKind.PRODUCER,
        attributes={"messaging.system": "imagefleet", "messaging.batch.message_count": jobs},
    ):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield carrier.get("traceparent")
