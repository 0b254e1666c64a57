"""One try at one callback: vet, sign, post, judge the answer.

Comes out: an `DeliveryOutcome`, never an exception for what the other side does.
"""

import http.client
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from imagefleet.shared.errors import CallbackRefused
from imagefleet.shared.webhooks.messages import DeliveryOutcome, DeliveryVerdict, OutboxMessage
from imagefleet.shared.webhooks.signature import sign
from imagefleet.worker.outbound.address_policy import AllowList, Endpoint, resolve_allowed
from imagefleet.worker.outbound.http_request import FAILURES, HttpResponse, send_http_request

_LONGEST_ANSWER: Final = 64 * 1024
_LONGEST_REASON: Final = 200
"""Characters of what the other side says that reach our logs."""


class Sender:
    """Safe to share between threads."""

    def __init__(self, secrets: Sequence[str], allow: AllowList, *, total_s: float = 10.0) -> None:
        self._secrets = tuple(secrets)
        self._allow = allow
        self._total_s = total_s
        self._tls = ssl.create_default_context()
        self._agent = f"imagefleet/{version('imagefleet')}"

    def send(self, message: OutboxMessage) -> DeliveryOutcome:
        started = time.monotonic()
        outcome = self._try(message, started + self._total_s)
        return replace(outcome, ms=round(1000 * (time.monotonic() - started)))

    def _try(self, message: OutboxMessage, deadline: float) -> DeliveryOutcome:
        try:
            endpoint = resolve_allowed(message.url, self._allow)
            return _judged(self._post(endpoint, message, deadline))
        except CallbackRefused as error:
            return DeliveryOutcome(verdict=DeliveryVerdict.REFUSED, reason=str(error))
        except FAILURES as error:
            late = time.monotonic() >= deadline
            reason = f"no answer within {self._total_s:g} s" if late else _words(error)
            return DeliveryOutcome(verdict=DeliveryVerdict.RETRY, reason=reason)

    def _post(self, endpoint: Endpoint, message: OutboxMessage, deadline: float) -> HttpResponse:
        headers = sign(message.id, message.body, self._secrets, datetime.now(UTC)) | {
            "content-type": "application/json",
            "user-agent": self._agent,
        }
        return send_http_request(
            endpoint,
            self._tls,
            "POST",
            headers,
            message.body.encode(),
            deadline=deadline,
            longest=_LONGEST_ANSWER,
        )


def _judged(answer: HttpResponse) -> DeliveryOutcome:
    """https://www.standardwebhooks.com, "Delivery success and failure"."""
    status, reason = answer.status, answer.reason[:_LONGEST_REASON]
    if 200 <= status < 300:
        return DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=status)
    if status == http.client.GONE:
        return DeliveryOutcome(
            verdict=DeliveryVerdict.GONE, status=status, reason="the receiver wants no more"
        )
    if 300 <= status < 400:
        reason = f"{reason}; redirects are not followed"
    asked = answer.headers.get("retry-after", "")
    retry_after_s = float(asked) if asked.isdecimal() and len(asked) < 10 else 0.0
    return DeliveryOutcome(
        verdict=DeliveryVerdict.RETRY, status=status, reason=reason, retry_after_s=retry_after_s
    )


def _words(error: Exception) -> str:
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return words[:_LONGEST_REASON]
