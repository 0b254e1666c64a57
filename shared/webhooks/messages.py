"""What waits in the outbox, ready to be signed and sent, and what came of its tries."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.model import Model


@dataclass(frozen=True, kw_only=True)
class OutboxMessage:
    """The JSON object in `<namespace>:outbox:messages`. Whoever writes it writes these fields."""

    id: str
    """Of the event: the same for every try, and for the same event told twice."""
    job_id: str
    url: str
    body: str
    """Exactly what is signed and posted."""
    attempts: int = 0
    """Tries so far."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises MessageRejected."""
        try:
            fields = json.loads(text)
            message = cls(
                **{name: str(fields[name]) for name in ("id", "job_id", "url", "body")},
                attempts=int(fields.get("attempts", 0)),
            )
            urlsplit(message.url)
        except (ValueError, TypeError, KeyError) as error:
            raise MessageRejected(f"outbox holds no message but {text[:80]!r}: {error}") from None
        return message

    @property
    def receiver(self) -> str:
        """Host and port as in the URL: what shares a fate."""
        return urlsplit(self.url).netloc

    def dump(self) -> str:
        return json.dumps(asdict(self))


class DeliveryVerdict(StrEnum):
    """What a try came to."""

    DELIVERED = "delivered"  # a 2xx
    RETRY = "retry"  # anything that may pass
    GONE = "gone"  # 410: the receiver wants no more
    REFUSED = "refused"  # we do not send there


@dataclass(frozen=True, kw_only=True)
class DeliveryOutcome:
    """Verdict, HTTP status if there was an answer, and why in a few words."""

    verdict: DeliveryVerdict
    status: int | None = None
    reason: str = ""
    retry_after_s: float = 0.0
    """How long the receiver asked us to wait."""
    ms: int = 0
    """How long the try took."""

    @property
    def said(self) -> str:
        """`500 Internal Server Error`, or why there was no answer."""
        return self.reason if self.status is None else f"{self.status} {self.reason}".rstrip()


class DeliveryAttempt(Model):
    """One line of a job's delivery log."""

    id: str
    """Of the message."""
    url: str
    attempt: int
    verdict: DeliveryVerdict
    status: int | None
    reason: str
    ms: int
    at: float
    """Unix seconds"""


class CallbackState(StrEnum):
    """Where a callback stands."""

    WAITING = "waiting"  # for its next try
    GIVEN_UP = "given up"  # refused, gone, or tried for three days
    DELIVERED = "delivered"


class CallbackEntry(Model):
    """A callback as an operator sees it."""

    id: str
    job_id: str
    standing: CallbackState
    at: float
    """Unix seconds: when it is due, was given up or was delivered."""
    url: str
    attempts: int
    last: DeliveryAttempt | None
    """None before the first try, and after `retention_s`."""
