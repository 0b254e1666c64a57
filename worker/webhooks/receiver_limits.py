"""Share the senders of one worker among the receivers, so that those that hang delay no others.

Input: receivers and the IP addresses that they resolve to. Output: permits. Anybody may invent
receivers, as many names and spellings as he likes, so each bound below is also one on all receivers
of its kind together. This module uses neither Redis nor HTTP.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from imagefleet.shared.webhooks.outbox import BUSY_DELAY_S, PERMITS, SLOW_DELAY_S
from imagefleet.shared.webhooks.outbox_message import DeliveryOutcome, DeliveryVerdict

MAX_SENDERS: Final = 16
"""Callbacks that one worker sends at the same time, at most half of them to one receiver."""
_PERMITS_OF_ADDRESS: Final = 10
"""More than one receiver has, so that one that hangs leaves permits to its neighbours; fewer than
all unproven receivers have, so that many names of one host that hangs leave some to other hosts."""
_MAX_UNPROVEN: Final = 13
"""Senders of all receivers that have not answered lately. The other three are reserved for those
that have: there is no end of addresses that nobody answers at."""
_MAX_SLOW: Final = 4
"""All slow receivers together have at most this many senders. The others serve receivers that
answered or are new."""
_SLOW_S: Final = 600.0
"""A receiver that did not answer gets one sender only for this long, or until it answers."""
_HANG_MS: Final = 1_000
"""An address that refuses at once holds no sender. One that takes longer is slow."""


class NoPermit(Exception):
    """All permits of the resolved address are taken. Try again in `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        super().__init__(f"no permit for {delay_s:g} s")


class _Kind(Enum):
    PROVEN = auto()  # answered lately
    NEW = auto()
    SLOW = auto()  # did not answer lately


@dataclass(frozen=True, kw_only=True)
class FreePermits:
    """The permits that a claim may use."""

    senders: int
    slow_senders: int
    """Senders that are free for slow receivers."""
    unproven_senders: int
    """Senders that are free for receivers that have not answered lately, slow ones included."""
    busy: Mapping[str, int]
    """It counts the permits taken, by receiver."""
    slow: frozenset[str]
    """These receivers are slow."""


class Permit:
    """A permit is one sender at work for one receiver."""

    def __init__(self, permits: "SenderPermits", receiver: str, kind: _Kind) -> None:
        self.receiver = receiver
        self.kind = kind
        self.address = ""
        """The latest address that this permit connected to is in this network."""
        self._permits = permits

    @contextmanager
    def at(self, address: str) -> Iterator[None]:
        """Hold a permit of `address` too. Raises NoPermit."""
        network = _network_of(address)
        self._permits.enter_address(self, network)
        try:
            yield
        finally:
            self._permits.leave_address(network)

    def record(self, outcome: DeliveryOutcome) -> None:
        """Remember whether the receiver answered."""
        self._permits.record(self, outcome)

    def release(self) -> None:
        """Release the sender."""
        self._permits.release(self)


class SenderPermits:
    """The permits of one worker's senders. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[_Kind] = Counter()
        self._receivers: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._slow: dict[str, float] = {}
        self._slow_addresses: dict[str, float] = {}

    def free(self) -> FreePermits:
        """Return the permits that are free now."""
        now = time.monotonic()
        with self._lock:
            self._slow = _unexpired(self._slow, now)
            self._slow_addresses = _unexpired(self._slow_addresses, now)
            return FreePermits(
                senders=max(0, MAX_SENDERS - self._held.total()),
                slow_senders=max(0, _MAX_SLOW - self._held[_Kind.SLOW]),
                unproven_senders=self._free_unproven(),
                busy=dict(self._receivers),
                slow=frozenset(self._slow),
            )

    def take(self, receiver: str, *, proven: bool) -> Permit | None:
        """Take a sender for `receiver`. Return None if it has no permit left.

        Args:
            proven: whether the receiver answered lately.
        """
        with self._lock:
            kind = _Kind.PROVEN if proven else _Kind.NEW
            permits = PERMITS
            if receiver in self._slow:
                kind, permits = _Kind.SLOW, 1
            no_sender = (kind is not _Kind.PROVEN and not self._free_unproven()) or (
                kind is _Kind.SLOW and self._held[kind] >= _MAX_SLOW
            )
            if no_sender or self._receivers[receiver] >= permits:
                return None
            self._held[kind] += 1
            self._receivers[receiver] += 1
            return Permit(self, receiver, kind)

    def enter_address(self, permit: Permit, network: str) -> None:
        """Take a permit of the address too, for the sender of `permit`. Raises NoPermit.

        A slow address has one permit for all receivers that have not answered lately. Such a
        receiver becomes slow itself, so that its next messages are not resolved before it is their
        turn.
        """
        with self._lock:
            slow = network in self._slow_addresses and permit.kind is not _Kind.PROVEN
            if slow and permit.receiver not in self._slow:
                self._slow[permit.receiver] = time.monotonic()
            turns_slow = slow and permit.kind is _Kind.NEW
            if self._addresses[network] >= (1 if slow else _PERMITS_OF_ADDRESS) or (
                turns_slow and self._held[_Kind.SLOW] >= _MAX_SLOW
            ):
                raise NoPermit(SLOW_DELAY_S if slow else BUSY_DELAY_S)
            if turns_slow:
                self._held[_Kind.NEW] -= 1
                self._held[_Kind.SLOW] += 1
                permit.kind = _Kind.SLOW
            self._addresses[network] += 1
            permit.address = network

    def leave_address(self, network: str) -> None:
        """Release a permit of the address."""
        with self._lock:
            self._addresses -= Counter([network])

    def record(self, permit: Permit, outcome: DeliveryOutcome) -> None:
        """Remember whether the receiver of `permit`, and the address it connected to, answered."""
        no_answer = outcome.verdict is DeliveryVerdict.RETRY and outcome.status is None
        with self._lock:
            if no_answer:
                self._slow[permit.receiver] = time.monotonic()
                if permit.address and outcome.ms >= _HANG_MS:
                    self._slow_addresses[permit.address] = time.monotonic()
            else:
                self._slow.pop(permit.receiver, None)

    def release(self, permit: Permit) -> None:
        """Release the sender of `permit`."""
        with self._lock:
            self._held -= Counter([permit.kind])
            self._receivers -= Counter([permit.receiver])

    def _free_unproven(self) -> int:
        taken = self._held[_Kind.NEW] + self._held[_Kind.SLOW]
        return max(0, min(_MAX_UNPROVEN - taken, MAX_SENDERS - self._held.total()))


def _network_of(address: str) -> str:
    """Return the network that counts as one address: one host of IPv6 may have all of a /64."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed)


def _unexpired(times: Mapping[str, float], now: float) -> dict[str, float]:
    return {name: at for name, at in times.items() if now < at + _SLOW_S}
