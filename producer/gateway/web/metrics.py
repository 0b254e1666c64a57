"""Define and serve the Prometheus metrics of a gateway process.

Labels take few values: none of them comes from a request.
"""

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from starlette.types import Scope

from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.fleet_label import labelled_registry
from imagefleet.shared.process.http_server import HttpServer

_REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=_REGISTRY)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REFUSALS: Final = frozenset({401, 403, 408, 413, 415, 429, 503})
_NO_ROUTE: Final = "none"
_OTHER_METHOD: Final = "other"

REQUESTS: Final = Counter(
    "imagefleet_http_requests",
    "Requests that were answered, by method, template of the path, and status.",
    ["method", "route", "status"],
    registry=_REGISTRY,
)
REQUEST_SECONDS: Final = Histogram(
    "imagefleet_http_request_seconds",
    "Time from the head of a request to the end of its answer; of streams, too.",
    ["route"],
    buckets=(0.005, 0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    registry=_REGISTRY,
)
REFUSED: Final = Counter(
    "imagefleet_http_refused",
    "Requests that were refused because of a key, a rate, a quota, a limit or an outage, by code.",
    ["reason"],
    registry=_REGISTRY,
)
OPEN_STREAMS: Final = Gauge(
    "imagefleet_http_open_streams", "Event streams that are open.", registry=_REGISTRY
)
HELD_BYTES: Final = Gauge(
    "imagefleet_http_held_bytes",
    "Memory that requests have taken for large bodies and answers.",
    registry=_REGISTRY,
)
WATCHED_JOBS: Final = Gauge(
    "imagefleet_http_watched_jobs", "Jobs that requests wait for.", registry=_REGISTRY
)


def count_request(scope: Scope, status: int, seconds: float) -> None:
    """Count a request that was answered. Status 499: its client had gone; 0: the gateway ended."""
    method = scope["method"] if scope["method"] in _METHODS else _OTHER_METHOD
    route = getattr(scope.get("route"), "path_format", _NO_ROUTE)
    REQUESTS.labels(method, route, str(status)).inc()
    REQUEST_SECONDS.labels(route).observe(seconds)


def count_refusal(problem: Problem) -> None:
    """Count a request that was refused, whatever it asked for."""
    if problem.status in _REFUSALS:
        REFUSED.labels(problem.code).inc()


def serve_metrics(host: str, port: int, namespace: str) -> HttpServer:
    """Serve `/metrics` on a port of its own, and return the server; stop it at the end.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        server = HttpServer(host, port, make_wsgi_app(labelled_registry(_REGISTRY, namespace)))
    except OSError as error:
        raise ConfigurationError(
            f"IMAGEFLEET_HTTP_METRICS_PORT={port}: cannot listen on {host}: "
            f"{error.strerror or error}; every gateway of a host needs a port of its own"
        ) from None
    server.start()
    return server
