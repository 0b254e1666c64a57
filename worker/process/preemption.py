"""Wait for the platform's notice that it is about to preempt this host.

Input: the address of the notice. Output: one call of a function. This module does not depend on
what that function does. Any other answer of the address, and any failure, has no effect.

The notice is Google Cloud's: a metadata value that is FALSE until the host is preempted. A request
can wait for its change
(https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange).
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode, urlsplit

from imagefleet.worker.outbound.address_policy import AllowList, resolve_allowed
from imagefleet.worker.outbound.http_request import REQUEST_ERRORS, HttpResponse, send_http_request

log = logging.getLogger(__name__)

_HEADERS: Final = {"metadata-flavor": "Google"}
_SERVER_WAIT_S: Final = 10
"""Seconds that the server may wait for a change. A connection that broke silently delays the notice
by this much, and only 30 s lie between the notice and the end of the host."""
_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 1.0
_MAX_RESPONSE_BYTES: Final = 64
_NO_ETAG: Final = "NONE"
"""An ETag that no value has, so that the server answers at once."""


def watch_for_notice(url: str, on_notice: Callable[[], None]) -> None:
    """Call `on_notice` once, in a new thread, when `url` says that this host is preempted.

    The thread is not critical: without it the host only ends before its worker knows.
    """

    def run() -> None:
        await_notice(url)
        on_notice()

    threading.Thread(target=run, name="preemption", daemon=True).start()


def await_notice(url: str, *, pause_s: float = _PAUSE_S, timeout_s: float = _TIMEOUT_S) -> None:
    """Query `url` until the value is TRUE. Log the first of several failures, and the recovery.

    Args:
        pause_s: seconds between two queries, for servers that fail or do not wait.
        timeout_s: seconds for one query; the server may wait for 10 of them.
    """
    etag, answering = _NO_ETAG, True
    while True:
        try:
            preempted, etag = _parse(_query(url, etag, timeout_s))
            if preempted:
                return
            if not answering:
                log.warning("preemption notice: %s answers again", url)
            answering = True
        except REQUEST_ERRORS as error:
            if answering:
                log.warning(
                    "preemption notice: %s failed, querying it again until it answers: %r",
                    url,
                    error,
                )
            etag, answering = _NO_ETAG, False
        time.sleep(pause_s)


def is_preempted(url: str, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """Return what `url` says now.

    Raises:
        ValueError: it does not answer, or not with TRUE or FALSE.
    """
    try:
        return _parse(_query(url, _NO_ETAG, timeout_s))[0]
    except REQUEST_ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _query(url: str, etag: str, timeout_s: float) -> HttpResponse:
    """Return the value once its ETag differs from `etag`, or after `_SERVER_WAIT_S`.

    So a change between two queries is not missed.
    """
    query = {"wait_for_change": "true", "timeout_sec": _SERVER_WAIT_S, "last_etag": etag}
    # The address may lie inside the network: the operator chose it, not a producer.
    allow = AllowList.parse([urlsplit(url).hostname or ""])
    return send_http_request(
        resolve_allowed(f"{url}?{urlencode(query)}", allow),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # required and unused: the address is plain http
        "GET",
        _HEADERS,
        deadline=time.monotonic() + timeout_s,
        max_bytes=_MAX_RESPONSE_BYTES,
    )


def _parse(answer: HttpResponse) -> tuple[bool, str]:
    """Return whether the host is preempted, and the ETag of that value. Raises ValueError."""
    value = answer.body.strip().upper()
    if answer.status != 200 or not answer.complete or value not in (b"TRUE", b"FALSE"):
        raise ValueError(f"status {answer.status} and {value!r} instead of 200 and TRUE or FALSE")
    return value == b"TRUE", answer.headers.get("etag", _NO_ETAG)
