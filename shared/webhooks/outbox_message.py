"""Describe the callbacks in the outbox and the outcomes of their delivery attempts."""

import json
import socket
from dataclasses import asdict, dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, Self
from urllib.parse import urlsplit

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.model import Model

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


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
            receiver_of(message.url)
        except (ValueError, TypeError, KeyError) as error:
            raise MessageRejected(
                f"the outbox holds {text[:80]!r}, which is not a message: {error}"
            ) from None
        return message

    @property
    def receiver(self) -> str:
        """Host and port in one spelling. Callbacks to one receiver share its concurrency limit."""
        return receiver_of(self.url)

    def dump(self) -> str:
        """Return the message as JSON."""
        return json.dumps(asdict(self))


def receiver_of(url: str) -> str:
    """Return the host and port of `url` in one spelling: `hooks.example`, `[::1]:8080`.

    The host is lower case, without user and trailing full stops; numeric addresses are in their
    shortest form; the port is left out if it is the scheme's own. `outbox_claim.lua` does the same,
    except for numeric addresses and names that are not ASCII. Raises ValueError.
    """
    parts = urlsplit(url)
    host, port = _one_spelling((parts.hostname or "").rstrip(".")), parts.port
    return host if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{port}"


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
