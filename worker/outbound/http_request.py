"""One HTTP request to a vetted endpoint, and its answer.

Follows no redirect, reads no proxy settings, connects only to addresses that were vetted, and is
through within its time however slowly the other side dribbles. Standard library only: the address,
the name on the certificate and the clock are each set in one visible line.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from imagefleet.worker.outbound.address_policy import Endpoint

_CONNECT_S: Final = 5.0

FAILURES: Final = (OSError, http.client.HTTPException, ValueError)
"""What an exchange raises. ValueError: what http.client and ssl say of a connection cut under their
hands."""


@dataclass(frozen=True, kw_only=True)
class HttpResponse:
    """What the other side said."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    whole: bool
    """False if the body was cut short, by us or by them."""


def send_http_request(
    endpoint: Endpoint,
    tls: ssl.SSLContext,
    method: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    deadline: float,
    longest: int,
) -> HttpResponse:
    """Send a request; read at most `longest` bytes of what comes back, until `deadline`
    (monotonic). Raises one of `FAILURES`."""
    sent = {"host": endpoint.authority, "connection": "close", **headers}
    with _connected(endpoint, deadline) as raw, _cut_at(raw, deadline):
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
        connection.sock = (
            tls.wrap_socket(raw, server_hostname=endpoint.host) if endpoint.secure else raw
        )
        try:
            connection.request(method, endpoint.target, body, sent)
            with connection.getresponse() as answer:
                if time.monotonic() >= deadline:  # cut headers read like complete ones
                    raise TimeoutError
                found = answer.read(longest)
                return HttpResponse(
                    status=answer.status,
                    reason=answer.reason,
                    headers={name.lower(): value for name, value in answer.getheaders()},
                    body=found,
                    whole=time.monotonic() < deadline and not answer.length,
                )
        finally:
            connection.close()


@contextmanager
def _connected(endpoint: Endpoint, deadline: float) -> Iterator[socket.socket]:
    """The first of the vetted addresses that takes a connection."""
    failure = OSError("the name has no address")
    for address in endpoint.addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time left to connect")
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
def _cut_at(raw: socket.socket, deadline: float) -> Iterator[None]:
    """Shut the connection at `deadline`. A socket's own timeout starts anew with every byte."""
    left = max(0.0, deadline - time.monotonic())
    raw.settimeout(max(left, 0.001))
    with raw.dup() as line:  # TLS takes `raw` over; its double stays ours
        timer = threading.Timer(left, _shut, [line])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _shut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:  # the other side was faster
        return
