"""One try at one callback: vet, connect, sign, post, read the answer.

Comes out: an `Outcome`, never an exception for what the other side does. Follows no redirect, reads
no proxy settings, connects only to addresses that were vetted, and is through within its time
however slowly the other side dribbles. Standard library only: the address, the name on the
certificate and the clock are each set in one visible line.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from shared.errors import CallbackRefused
from shared.outbox.messages import Message, Outcome, Verdict
from shared.webhooks import sign
from worker.delivery.addresses import AllowList, Endpoint, vet

_LONGEST_ANSWER: Final = 64 * 1024
_LONGEST_REASON: Final = 200
"""Characters of what the other side says that reach our logs."""
_CONNECT_S: Final = 5.0


class Sender:
    """Safe to share between threads."""

    def __init__(self, secrets: Sequence[str], allow: AllowList, *, total_s: float = 10.0) -> None:
        self._secrets = tuple(secrets)
        self._allow = allow
        self._total_s = total_s
        self._tls = ssl.create_default_context()
        self._agent = f"imagefleet/{version('imagefleet')}"

    def send(self, message: Message) -> Outcome:
        started = time.monotonic()
        outcome = self._try(message, started + self._total_s)
        return replace(outcome, ms=round(1000 * (time.monotonic() - started)))

    def _try(self, message: Message, deadline: float) -> Outcome:
        try:
            endpoint = vet(message.url, self._allow)
            with _connected(endpoint, deadline) as raw:
                return _judged(self._post(raw, endpoint, message, deadline))
        except CallbackRefused as error:
            return Outcome(verdict=Verdict.REFUSED, reason=str(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: what http.client and ssl say of a connection cut under their hands.
            late = time.monotonic() >= deadline
            reason = f"no answer within {self._total_s:g} s" if late else _words(error)
            return Outcome(verdict=Verdict.RETRY, reason=reason)

    def _post(
        self, raw: socket.socket, endpoint: Endpoint, message: Message, deadline: float
    ) -> http.client.HTTPResponse:
        body = message.body.encode()
        headers = sign(message.id, message.body, self._secrets, datetime.now(UTC)) | {
            "host": endpoint.authority,
            "content-type": "application/json",
            "user-agent": self._agent,
            "connection": "close",
        }
        with _cut_at(raw, deadline):
            connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
            connection.sock = (
                self._tls.wrap_socket(raw, server_hostname=endpoint.host)
                if endpoint.secure
                else raw
            )
            try:
                connection.request("POST", endpoint.target, body, headers)
                with connection.getresponse() as answer:
                    if time.monotonic() >= deadline:  # cut headers read like complete ones
                        raise TimeoutError
                    answer.read(_LONGEST_ANSWER)
                    return answer
            finally:
                connection.close()


def _judged(answer: http.client.HTTPResponse) -> Outcome:
    """https://www.standardwebhooks.com, "Delivery success and failure"."""
    status, reason = answer.status, answer.reason[:_LONGEST_REASON]
    if 200 <= status < 300:
        return Outcome(verdict=Verdict.DELIVERED, status=status)
    if status == http.client.GONE:
        return Outcome(verdict=Verdict.GONE, status=status, reason="the receiver wants no more")
    if 300 <= status < 400:
        reason = f"{reason}; redirects are not followed"
    asked = answer.getheader("retry-after", "")
    retry_after_s = float(asked) if asked.isdecimal() and len(asked) < 10 else 0.0
    return Outcome(verdict=Verdict.RETRY, status=status, reason=reason, retry_after_s=retry_after_s)


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


def _words(error: Exception) -> str:
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return words[:_LONGEST_REASON]
