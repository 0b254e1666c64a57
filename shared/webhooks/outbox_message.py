"""Describe the callbacks in the outbox and the outcomes of their delivery attempts."""

import json
import math
import operator
import socket
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.celery_message import valid_trace_parent
from imagefleet.shared.jobs.model import Count, Model, Time

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MAX_ATTEMPTS: Final = 1_000
"""Far more than are made: a larger number was not written by a worker."""
_OCCURRENCE_MARK: Final = "+"
"""If another event has the id already, `outbox.lua` adds this mark and the occurrence to it."""
_TEST_SUFFIX: Final = ".test"
"""The id of a test ends in this. Other ids end in the name of a job's event, or in a step."""
_TENANT_MARK: Final = "@"
"""It is in no receiver and in no name of a tenant."""


@dataclass(frozen=True, kw_only=True)
class OutboxMessage:
    """A message is one callback in the outbox. It is stored as JSON with exactly these fields:
    those after `attempts` only if they are not empty. Release 0.1.0 drops these."""

    id: str
    """Derived from the event, so it is the same for every attempt. If another event of the job
    takes the id, as after a redrive, a `+` and the occurrence are added."""
    job_id: str
    url: str
    body: str
    """The text that is signed and posted."""
    attempts: int = 0
    """Delivery attempts so far."""
    tenant: str = ""
    """The tenant of the job, whose secrets sign the callback; empty: none, or one of a producer of
    release 0.1.0."""
    trace_parent: str = ""
    """The span in which the event happened, as `traceparent` of W3C Trace Context; empty: none."""
    since: float = 0.0
    """From when on it has waited without an attempt, Unix seconds by Redis' clock; 0: it has not.
    `outbox.lua` writes it."""
    occurrence: str = ""
    """It tells events of the job with the same id apart; empty: the body does. `outbox.lua` writes
    it."""

    @classmethod
    def for_test(cls, url: str, tenant: str = "") -> Self:
        """Return a new message that tests the receiver at `url`. It belongs to no job."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        event = {
            "type": "webhook.test",
            "timestamp": datetime.now(UTC).isoformat(),
            "data": {"id": name},
        }
        return cls(
            id=f"{name}{_TEST_SUFFIX}", job_id=name, url=url, body=json.dumps(event), tenant=tenant
        )

    @property
    def is_test(self) -> bool:
        """Whether the message is a test: it is sent once, whatever comes of it."""
        return self.id.endswith(_TEST_SUFFIX)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a message from its JSON. Raises MessageRejected."""
        try:
            fields = json.loads(text)
            message = cls(
                **{name: _text(name, fields[name]) for name in ("id", "job_id", "url", "body")},
                attempts=_attempts(fields.get("attempts", 0)),
                tenant=str(fields.get("tenant", "")),
                trace_parent=valid_trace_parent(fields.get("trace_parent")) or "",
                since=_time(fields.get("since", 0.0)),
                occurrence=_text("occurrence", fields.get("occurrence", "")),
            )
            receiver_of(message.url)
            # A ValueError for half of a surrogate pair, which cannot be sent or stored again.
            "".join(each for each in asdict(message).values() if isinstance(each, str)).encode()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise MessageRejected(
                f"the outbox holds {text[:80]!r}, which is not a message: {error}"
            ) from None
        return message

    @property
    def receiver(self) -> str:
        """Host and port in one spelling."""
        return receiver_of(self.url)

    @property
    def share(self) -> str:
        """It is the receiver as that of this tenant: `hooks.example@gold`, or `hooks.example`.

        Callbacks of one share have common permits. `outbox_claim.lua` spells it alike.
        """
        return f"{self.receiver}{_TENANT_MARK}{self.tenant}" if self.tenant else self.receiver

    @property
    def event_id(self) -> str:
        """The id as it was before another event took it."""
        return self.id.partition(_OCCURRENCE_MARK)[0]

    def dump(self) -> str:
        """Return the message as JSON."""
        fields = asdict(self)
        for name in ("tenant", "trace_parent", "since", "occurrence"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields)


def receiver_of(url: str) -> str:
    """Return the host and port of `url` in one spelling: `hooks.example`, `[::1]:8080`.

    The host is lower case, without user and trailing full stops; numeric addresses are in their
    shortest form; the port is left out if it is the scheme's own. `outbox_claim.lua` does the same,
    except for numeric addresses and names that are not ASCII. Raises ValueError.
    """
    parts = urlsplit(url)
    host, port = _one_spelling((parts.hostname or "").rstrip(".")), parts.port
    return host if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{port}"


def tenant_of(share: str) -> str:
    """Return the tenant of a share, empty if it has none."""
    return share.partition(_TENANT_MARK)[2]


def _attempts(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_ATTEMPTS:
        raise ValueError(f"attempts={str(value)[:40]} is not a count")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}={str(value)[:40]} is no text")
    return value


def _time(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"since={str(value)[:40]} is not a time")
    return float(value)  # type: ignore[arg-type]


def _one_spelling(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        try:
            return socket.inet_ntoa(socket.inet_aton(host))  # 127.1, 0x7f000001
        except OSError:
            return host
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped) if address.ipv4_mapped else f"[{address}]"


class DeliveryVerdict(StrEnum):
    """A delivery attempt has one of these verdicts."""

    DELIVERED = "delivered"  # the receiver answered 2xx
    RETRY = "retry"  # it failed, and a later attempt may succeed
    GONE = "gone"  # the receiver answered 410: it wants no more callbacks
    REFUSED = "refused"  # nothing was sent: the address is not allowed, or no sender was free


@dataclass(frozen=True, kw_only=True)
class DeliveryOutcome:
    """The outcome describes a delivery attempt. `status` is that of the HTTP answer, if any."""

    verdict: DeliveryVerdict
    status: int | None = None
    reason: str = ""
    retry_after_s: float = 0.0
    """The receiver asked to wait this many seconds (`Retry-After`)."""
    ms: int = 0
    """The attempt took this many milliseconds."""
    answer: str = ""
    """The answer of a test's receiver begins with this."""

    @property
    def description(self) -> str:
        """`500 Internal Server Error`, or why there was no answer."""
        return self.reason if self.status is None else f"{self.status} {self.reason}".rstrip()


class DeliveryAttempt(Model):
    """A delivery attempt is one line of a job's delivery log."""

    id: str
    """It is the id of the message."""
    url: str
    attempt: Count
    verdict: DeliveryVerdict
    status: int | None
    reason: str
    ms: Count
    at: Time
    """It is a time in Unix seconds."""
    answer: str = Field(default="", exclude_if=operator.not_)
    """Only of a test: release 0.1.0 cannot read a line with this field."""


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
    """It is None before the first attempt, and after `retention_s`."""
