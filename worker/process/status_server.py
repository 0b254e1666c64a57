"""Serve `/metrics`, `/healthz` and `/readyz` over HTTP, for Prometheus and Kubernetes."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, disable_created_metrics, make_wsgi_app

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.fleet_label import labelled_registry
from imagefleet.shared.process.http_server import HttpServer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")

NotReadyReason = Callable[[], str | None]
"""Returns why the worker takes no work, or None while it takes work."""


class StatusServer:
    """Answers in threads of its own from `start` until the process ends.

    `/metrics` returns the metrics in Prometheus' formats, each with the label `fleet`. `/healthz`
    returns 200 as long as the process can answer; a worker whose devices hang ends itself.
    `/readyz` returns 200 while the worker takes work, else 503 and the reason.
    """

    def __init__(
        self, host: str, port: int, not_ready_reason: NotReadyReason, namespace: str
    ) -> None:
        self._host = host
        self._port = port
        self._not_ready_reason = not_ready_reason
        # Without them a page has half the series; nobody needs the times.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._metrics = make_wsgi_app(labelled_registry(REGISTRY, namespace))

    def start(self) -> int:
        """Listen, and return the port: if it was 0, a free one.

        Raises:
            ConfigurationError: another process listens there, or the address is not of this host.
        """
        try:
            server = HttpServer(self._host, self._port, self._answer)
        except OSError as error:
            raise ConfigurationError(
                f"IMAGEFLEET_METRICS_PORT={self._port}: cannot listen on {self._host}: "
                f"{error.strerror or error}; every worker of a host needs a port of its own"
            ) from None
        server.start()
        return server.port

    def _answer(self, environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start)
            return answer
        if path == "/healthz":
            return _text(start, HTTPStatus.OK, "ok")
        if path == "/readyz":
            reason = self._not_ready_reason()
            status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
            return _text(start, status, reason or "ready")
        return _text(start, HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")


def _text(start: "StartResponse", status: HTTPStatus, line: str) -> list[bytes]:
    start(f"{status.value} {status.phrase}", [_TEXT])
    return [f"{line}\n".encode()]
