"""The platform's notice that it is about to take this host away.

Goes in: the address at which it says so. Comes out: a call, when it does. Knows nothing of what is
to be done then, and whatever else that address answers, or fails to, changes nothing.

The notice is Google Cloud's: a value, FALSE until the host is preempted, that can be waited for
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
from imagefleet.worker.outbound.http_request import FAILURES, HttpResponse, send_http_request

log = logging.getLogger(__name__)

_HEADERS: Final = {"metadata-flavor": "Google"}
_SERVER_WAITS_S: Final = 10
"""What a server that was cut off meanwhile can cost of the 30 s between notice and end."""
_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 1.0
_LONGEST_ANSWER: Final = 64
_NO_ETAG: Final = "NONE"
"""Equals the tag of no value, so it is answered at once."""


def watch(url: str, on_notice: Callable[[], None]) -> None:
    """Call `on_notice`, once, in a thread of its own, when `url` says that this host is preempted.
    The thread is not vital: without it the host just ends sooner than its worker knows."""

    def run() -> None:
        await_notice(url)
        on_notice()

    threading.Thread(target=run, name="preemption", daemon=True).start()


def await_notice(url: str, *, pause_s: float = _PAUSE_S, patience_s: float = _PATIENCE_S) -> None:
    """Ask until the answer is TRUE. Failures are told once, until there is an answer again.

    Args:
        pause_s: between two questions, for servers that fail or do not wait.
        patience_s: within which an answer must be here; a server may wait for 10 s of it.
    """
    etag, answering = _NO_ETAG, True
    while True:
        try:
            preempted, etag = _read(_ask(url, etag, patience_s))
            if preempted:
                return
            if not answering:
                log.warning("%s answers again", url)
            answering = True
        except FAILURES as error:
            if answering:
                log.warning("no preemption notice can be had from %s: %r; asking on", url, error)
            etag, answering = _NO_ETAG, False
        time.sleep(pause_s)


def _ask(url: str, etag: str, patience_s: float) -> HttpResponse:
    """Answered as soon as the value is not the one that `etag` stands for, or when the server has
    waited long enough: so no change can fall between two questions."""
    question = {"wait_for_change": "true", "timeout_sec": _SERVER_WAITS_S, "last_etag": etag}
    # Inside the network on purpose: the operator chose the address, no stranger did.
    allow = AllowList.parse([urlsplit(url).hostname or ""])
    return send_http_request(
        resolve_allowed(f"{url}?{urlencode(question)}", allow),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # unused: the address is plain http
        "GET",
        _HEADERS,
        deadline=time.monotonic() + patience_s,
        longest=_LONGEST_ANSWER,
    )


def _read(answer: HttpResponse) -> tuple[bool, str]:
    """Whether the host is preempted, and the tag of that. Raises ValueError."""
    value = answer.body.strip().upper()
    if answer.status != 200 or not answer.whole or value not in (b"TRUE", b"FALSE"):
        raise ValueError(f"status {answer.status}, {value!r}, neither TRUE nor FALSE")
    return value == b"TRUE", answer.headers.get("etag", _NO_ETAG)
