"""Send one HTTP request to a checked endpoint and read the response.

The request follows no redirect, reads no proxy settings, connects only to checked addresses, and
ends by its deadline however slowly the server sends. The module uses the standard library only, so
that the IP address, the host name of the certificate and the deadline are each set in one visible
line.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from imagefleet.worker.outbound.address_policy import Endpoint

_CONNECT_S: Final = 5.0

Admit = Callable[[str], AbstractContextManager[object]]
"""Called with an IP address before the connection to it; held until the response is read."""

REQUEST_ERRORS: Final = (OSError, http.client.HTTPException, ValueError)
"""What `send_http_request` may raise. http.client and ssl raise ValueError when the connection is
shut down while they use it."""


@dataclass(frozen=True, kw_only=True)
class HttpResponse:
    """The response of the server."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """It holds the values by lower-case name."""
    body: bytes
    complete: bool
    """False if the body was cut short, by the limit, the deadline or the server."""


def send_http_request(
    endpoint: Endpoint,
    tls: ssl.SSLContext,
    method: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    deadline: float,
    max_bytes: int,
    admit: Admit = nullcontext,
) -> HttpResponse:
    """Send a request and return its response.

    Args:
        deadline: when to stop, on the clock of `time.monotonic`.
        max_bytes: read at most this much of the body.
        admit: may refuse an address by raising an exception of its own, which is passed on.

    Raises:
        OSError, HTTPException, ValueError: no response was received (`REQUEST_ERRORS`).
    """
    sent = {"host": endpoint.authority, "connection": "close", **headers}
    with _connect(endpoint, deadline, admit) as raw, _shut_down_at(raw, deadline):
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
        connection.sock = (
            tls.wrap_socket(raw, server_hostname=endpoint.host) if endpoint.secure else raw
        )
        try:
            connection.request(method, endpoint.target, body, sent)
            with connection.getresponse() as response:
                if time.monotonic() >= deadline:  # headers that were cut off look complete
                    raise TimeoutError
                content, cut = _read(response, max_bytes)
                return HttpResponse(
                    status=response.status,
                    reason=response.reason,
                    headers={name.lower(): value for name, value in response.getheaders()},
                    body=content,
                    complete=not cut and time.monotonic() < deadline and not response.length,
                )
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse, max_bytes: int) -> tuple[bytes, bool]:
    """Return the content, and whether it was cut off inside a chunk."""
    try:
        return response.read(max_bytes), False
    except http.client.IncompleteRead as error:
        return error.partial, True


@contextmanager
def _connect(endpoint: Endpoint, deadline: float, admit: Admit) -> Iterator[socket.socket]:
    """Connect to the first of the checked addresses that accepts a connection."""
    failure = OSError("the name has no address")
    for address in endpoint.addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time left to connect")
        with admit(address):
            try:
                raw = socket.create_connection((address, endpoint.port), min(_CONNECT_S, left))
            except OSError as error:
                failure = error
                continue
            with raw:
                yield raw
            return
    raise failure


@contextmanager
def _shut_down_at(raw: socket.socket, deadline: float) -> Iterator[None]:
    """Shut the connection down at `deadline`. The timeout of a socket restarts with every byte."""
    left = max(0.0, deadline - time.monotonic())
    raw.settimeout(max(left, 0.001))
    with raw.dup() as duplicate:  # TLS takes over `raw`
        timer = threading.Timer(left, _shut_down, [duplicate])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # the server has closed it already
        return
