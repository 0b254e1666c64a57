"""Describe the callbacks in the outbox and the outcomes of their delivery attempts."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.model import Model


@dataclass(frozen=True, kw_only=True)
class OutboxMessage:
    """A message is one callback in the outbox. It is stored as JSON with exactly these fields."""

    id: str
    """Derived from the event, so it is the same for every attempt."""
    job_id: str
    url: str
    body: str
    """The text that is signed and posted."""
    attempts: int = 0
    """Delivery attempts so far."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a message from its JSON. Raises MessageRejected."""
        try:
            fields = json.loads(text)
            message = cls(
                **{name: str(fields[name]) for name in ("id", "job_id", "url", "body")},
                attempts=int(fields.get("attempts", 0)),
            )
            urlsplit(message.url)
        except (ValueError, TypeError, KeyError) as error:
            raise MessageRejected(
                f"the outbox holds {text[:80]!r}, which is not a message: {error}"
            ) from None
        return message

    @property
    def receiver(self) -> str:
        """Host and port as in the URL. Callbacks to one receiver share its concurrency limit."""
        return urlsplit(self.url).netloc

    def dump(self) -> str:
        """Return the message as JSON."""
        return json.dumps(asdict(self))


class DeliveryVerdict(StrEnum):
    """A delivery attempt has one of these verdicts."""

    DELIVERED = "delivered"  # the receiver answered 2xx
    RETRY = "retry"  # it failed, and a later attempt may succeed
    GONE = "gone"  # the receiver answered 410: it wants no more callbacks
    REFUSED = "refused"  # the address is not allowed, so nothing was sent


@dataclass(frozen=True, kw_only=True)
class DeliveryOutcome:
    """The outcome describes a delivery attempt. `status` is that of the HTTP answer, if any."""

    verdict: DeliveryVerdict
    status: int | None = None
    reason: str = ""
    retry_after_s: float = 0.0
    """How long the receiver asked to wait (`Retry-After`)."""
    ms: int = 0
    """Duration of the attempt in milliseconds."""

    @property
    def description(self) -> str:
        """`500 Internal Server Error`, or why there was no answer."""
        return self.reason if self.status is None else f"{self.status} {self.reason}".rstrip()


class DeliveryAttempt(Model):
    """A delivery attempt is one line of a job's delivery log."""

    id: str
    """Id of the message."""
    url: str
    attempt: int
    verdict: DeliveryVerdict
    status: int | None
    reason: str
    ms: int
    at: float
    """Unix seconds."""


class CallbackState(StrEnum):
    """A callback is in one of these states."""

    WAITING = "waiting"  # for its next attempt
    GIVEN_UP = "given up"  # refused, gone, or tried for three days
    DELIVERED = "delivered"


class CallbackEntry(Model):
    """An entry is a callback as the command `imagefleet webhooks` shows it."""

    id: str
    job_id: str
    standing: CallbackState
    at: float
    """Unix seconds: when it is due, was given up or was delivered."""
    url: str
    attempts: int
    last: DeliveryAttempt | None
    """None before the first attempt, and after `retention_s`."""
