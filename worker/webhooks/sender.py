"""Try to send one callback: check the address, sign, post, read the response.

Input: a message of the outbox. Output: a `DeliveryOutcome`. The sender raises nothing for what the
receiver does.
"""

import http.client
import ssl
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Final

from imagefleet.shared.errors import CallbackRefused
from imagefleet.shared.text.printable import printable
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.signature import sign
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.outbound.address_policy import AllowList, Endpoint, resolve_allowed
from imagefleet.worker.outbound.http_request import (
    REQUEST_ERRORS,
    Admit,
    HttpResponse,
    send_http_request,
)

_MAX_RESPONSE_BYTES: Final = 64 * 1024
_MAX_REASON_LENGTH: Final = 200
"""Characters of the receiver's text that reach the logs."""


class Sender:
    """Sends signed callbacks. Safe to share between threads."""

    def __init__(
        self, secrets: WebhookSecrets, allow: AllowList, *, timeout_s: float = 10.0
    ) -> None:
        self._secrets = secrets
        self._allow = allow
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()
        self._agent = f"imagefleet/{version('imagefleet')}"

    def send(self, message: OutboxMessage, admit: Admit = nullcontext) -> DeliveryOutcome:
        """Send `message` once. What `admit` raises for an address is passed on."""
        started = time.monotonic()
        outcome = self._try(message, started + self._timeout_s, admit)
        return replace(
            outcome,
            reason=printable(outcome.reason, _MAX_REASON_LENGTH),
            ms=round(1000 * (time.monotonic() - started)),
        )

    def _try(self, message: OutboxMessage, deadline: float, admit: Admit) -> DeliveryOutcome:
        try:
            endpoint = resolve_allowed(message.url, self._allow)
            response = self._post(endpoint, message, deadline, admit)
            outcome = _outcome_of(response)
            return _with_answer(outcome, response) if message.is_test else outcome
        except CallbackRefused as error:
            return DeliveryOutcome(verdict=DeliveryVerdict.REFUSED, reason=str(error))
        except REQUEST_ERRORS as error:
            late = time.monotonic() >= deadline
            reason = f"no answer within {self._timeout_s:g} s" if late else _describe(error)
            return DeliveryOutcome(verdict=DeliveryVerdict.RETRY, reason=reason)

    def _post(
        self, endpoint: Endpoint, message: OutboxMessage, deadline: float, admit: Admit
    ) -> HttpResponse:
        secrets = self._secrets.of_tenant(message.tenant)
        now = datetime.now(UTC)
        headers = sign(message.event_id, message.body, secrets, now, message.occurrence) | {
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
            max_bytes=_MAX_RESPONSE_BYTES,
            admit=admit,
        )


def _outcome_of(response: HttpResponse) -> DeliveryOutcome:
    """Return the outcome that a response means.

    Source: https://www.standardwebhooks.com, "Delivery success and failure".
    """
    status, reason = response.status, printable(response.reason, _MAX_REASON_LENGTH // 2)
    if 200 <= status < 300:
        return DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=status)
    if status == http.client.GONE:
        return DeliveryOutcome(
            verdict=DeliveryVerdict.GONE,
            status=status,
            reason="the receiver wants no further callbacks",
        )
    if 300 <= status < 400:
        reason = f"{reason}; redirects are not followed"
    retry_after_s = _seconds_until(response.headers.get("retry-after", ""))
    return DeliveryOutcome(
        verdict=DeliveryVerdict.RETRY, status=status, reason=reason, retry_after_s=retry_after_s
    )


def _seconds_until(retry_after: str) -> float:
    """Return the seconds that a `Retry-After` asks for: a number or a date (RFC 9110, 10.2.3).

    Return 0 if it is neither, or past.
    """
    if retry_after.isdecimal() and len(retry_after) < 10:
        return float(retry_after)
    try:
        at = parsedate_to_datetime(retry_after).astimezone(UTC)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _with_answer(outcome: DeliveryOutcome, response: HttpResponse) -> DeliveryOutcome:
    text = response.body[: 4 * _MAX_REASON_LENGTH].decode(errors="replace").strip()
    return replace(outcome, answer=printable(text, _MAX_REASON_LENGTH))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
