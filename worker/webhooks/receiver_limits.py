"""Share the senders of one worker among tenants and receivers, so that those that hang delay no
others.

Input: shares, which are receivers as those of one tenant, and the IP addresses that they resolve
to. Output: permits. What one tenant's receivers do is never held against another tenant, also at
the same address: that may be one of a CDN. Anybody may invent receivers, as many names and
spellings as he likes, so a tenant gets a permit only while it has fewer than are free. One tenant
so has at most half of the senders, two have a third each. Source of the rule: A. K. Choudhury and
E. L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM
Transactions on Networking 6(2), 1998. This module uses neither Redis nor HTTP.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple, TypeVar

from imagefleet.shared.webhooks.outbox import (
    BUSY_DELAY_S,
    MAX_SLOW_OF_TENANT,
    PERMITS,
    SLOW_DELAY_S,
    SPARE_FOR_PROVEN,
)
from imagefleet.shared.webhooks.outbox_message import DeliveryOutcome, DeliveryVerdict, tenant_of

Name = TypeVar("Name")

MAX_SENDERS: Final = 32
"""Callbacks that one worker sends at the same time, at most half of them for one tenant."""
_PERMITS_OF_ADDRESS: Final = 10
"""A tenant has more of them than one receiver has, so that one that hangs leaves permits to its
neighbours; and fewer than senders, so that many names of one host that hangs leave some to other
hosts."""
_MAX_UNPROVEN: Final = 29
"""Senders of all receivers that have not answered lately. The other three are reserved for those
that have: there is no end of addresses that nobody answers at."""
_MAX_SLOW: Final = 16
"""All slow receivers together have at most this many senders, shared by the same rule. The others
serve receivers that answered or are new."""
_SLOW_S: Final = 600.0
"""A receiver that did not answer gets one sender of a tenant for this long, or until it answers."""
_HANG_MS: Final = 1_000
"""An address that refuses at once holds no sender. One that takes longer is slow."""


class NoPermit(Exception):
    """All permits of the resolved address are taken. Try again in `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        super().__init__(f"no permit for {delay_s:g} s")


class _Place(NamedTuple):
    """A place is an address as that of one tenant."""

    tenant: str
    network: str


class _Kind(Enum):
    PROVEN = auto()  # answered lately
    NEW = auto()
    SLOW = auto()  # did not answer lately


@dataclass(frozen=True, kw_only=True)
class FreePermits:
    """The permits that a claim may use."""

    claimable: int
    """Messages that it may claim: its part of the free senders."""
    senders: int
    """Senders that are free."""
    slow_senders: int
    """Senders that are free for slow receivers."""
    unproven_senders: int
    """Senders that are free for receivers that have not answered lately, slow ones included."""
    busy: Mapping[str, int]
    """It counts the permits taken, by share."""
    slow: frozenset[str]
    """These shares are slow."""


class Permit:
    """A permit is one sender at work for one share."""

    def __init__(self, permits: "SenderPermits", share: str, kind: _Kind) -> None:
        self.share = share
        self.tenant = tenant_of(share)
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
            self._permits.leave_address(self, network)

    def record(self, outcome: DeliveryOutcome) -> None:
        """Remember whether the receiver answered."""
        self._permits.record(self, outcome)

    def release(self) -> None:
        """Release the sender."""
        self._permits.release(self)


class SenderPermits:
    """The permits of one worker's senders. Threads may share it."""

    def __init__(self, loops: int = 1) -> None:
        """Take how many delivery loops share the senders: each claims a part of those that are
        free, and none what another is claiming for."""
        self._loops = loops
        self._reserved = 0
        """Senders that are free, for messages that are being claimed."""
        self._refused: set[Callable[[], object]] = set()
        self._lock = threading.Lock()
        self._held: Counter[_Kind] = Counter()
        self._tenants: Counter[str] = Counter()
        self._slow_of_tenants: Counter[str] = Counter()
        self._shares: Counter[str] = Counter()
        self._addresses: Counter[_Place] = Counter()
        self._slow: dict[str, float] = {}
        self._slow_addresses: dict[_Place, float] = {}

    def free(self) -> FreePermits:
        """Return the permits that are free now."""
        with self._lock:
            return self._free()

    def _free(self) -> FreePermits:
        now = time.monotonic()
        self._slow = _unexpired(self._slow, now)
        self._slow_addresses = _unexpired(self._slow_addresses, now)
        senders = max(0, self._free_senders() - self._reserved)
        return FreePermits(
            claimable=math.ceil(senders / self._loops),
            senders=senders,
            slow_senders=max(0, _MAX_SLOW - self._held[_Kind.SLOW]),
            unproven_senders=max(0, self._free_unproven() - self._reserved),
            busy=dict(self._shares),
            slow=frozenset(self._slow),
        )

    @contextmanager
    def reserving(self, wake: Callable[[], object]) -> Iterator[FreePermits]:
        """Yield the permits that a claim may use. Inside the block its messages take theirs.

        Args:
            wake: called if the claim may use none, once another loop has claimed.
        """
        with self._lock:
            free = self._free()
            self._reserved += free.claimable
            if not free.claimable:
                self._refused.add(wake)
        try:
            yield free
        finally:
            if free.claimable:
                self._end_claim(free.claimable)

    def _end_claim(self, reserved: int) -> None:
        with self._lock:
            self._reserved -= reserved
            refused, self._refused = self._refused, set()
        for wake in refused:
            wake()

    def take(self, share: str, *, proven: bool) -> Permit | None:
        """Take a sender for `share`. Return None if it, or its tenant, has no permit left.

        Args:
            proven: whether the receiver answered lately.
        """
        with self._lock:
            kind = _Kind.PROVEN if proven else _Kind.NEW
            permits = PERMITS
            if share in self._slow:
                kind, permits = _Kind.SLOW, 1
            permit = Permit(self, share, kind)
            if not self._has_sender(permit) or self._shares[share] >= permits:
                return None
            self._held[kind] += 1
            self._tenants[permit.tenant] += 1
            if kind is _Kind.SLOW:
                self._slow_of_tenants[permit.tenant] += 1
            self._shares[share] += 1
            return permit

    def enter_address(self, permit: Permit, network: str) -> None:
        """Take a permit of the address too, for the sender of `permit`. Raises NoPermit.

        A slow address has one permit for all receivers of a tenant that have not answered lately.
        Such a receiver becomes slow itself, so that its next messages are not resolved before it is
        their turn.
        """
        with self._lock:
            place = _Place(permit.tenant, network)
            slow = place in self._slow_addresses and permit.kind is not _Kind.PROVEN
            if slow and permit.share not in self._slow:
                self._slow[permit.share] = time.monotonic()
            turns_slow = slow and permit.kind is _Kind.NEW
            if self._addresses[place] >= (1 if slow else _PERMITS_OF_ADDRESS) or (
                turns_slow and not self._has_slow_sender(permit.tenant)
            ):
                raise NoPermit(SLOW_DELAY_S if slow else BUSY_DELAY_S)
            if turns_slow:
                self._held[_Kind.NEW] -= 1
                self._held[_Kind.SLOW] += 1
                self._slow_of_tenants[permit.tenant] += 1
                permit.kind = _Kind.SLOW
            self._addresses[place] += 1
            permit.address = network

    def leave_address(self, permit: Permit, network: str) -> None:
        """Release a permit of the address."""
        with self._lock:
            self._addresses -= Counter([_Place(permit.tenant, network)])

    def record(self, permit: Permit, outcome: DeliveryOutcome) -> None:
        """Remember whether the receiver of `permit`, and the address it connected to, answered."""
        no_answer = outcome.verdict is DeliveryVerdict.RETRY and outcome.status is None
        with self._lock:
            if no_answer:
                self._slow[permit.share] = time.monotonic()
                if permit.address and outcome.ms >= _HANG_MS:
                    place = _Place(permit.tenant, permit.address)
                    self._slow_addresses[place] = time.monotonic()
            else:
                self._slow.pop(permit.share, None)

    def release(self, permit: Permit) -> None:
        """Release the sender of `permit`."""
        with self._lock:
            self._held -= Counter([permit.kind])
            self._tenants -= Counter([permit.tenant])
            if permit.kind is _Kind.SLOW:
                self._slow_of_tenants -= Counter([permit.tenant])
            self._shares -= Counter([permit.share])

    def _has_sender(self, permit: Permit) -> bool:
        """Return whether a sender of this kind is free for the tenant; `outbox_claim.lua` too."""
        if permit.kind is _Kind.PROVEN:
            free = self._free_senders()
            return free > 0 and self._tenants[permit.tenant] < free + SPARE_FOR_PROVEN
        if self._tenants[permit.tenant] >= self._free_unproven():
            return False
        return permit.kind is not _Kind.SLOW or self._has_slow_sender(permit.tenant)

    def _has_slow_sender(self, tenant: str) -> bool:
        free = _MAX_SLOW - self._held[_Kind.SLOW]
        return self._slow_of_tenants[tenant] < min(free, MAX_SLOW_OF_TENANT)

    def _free_senders(self) -> int:
        return max(0, MAX_SENDERS - self._held.total())

    def _free_unproven(self) -> int:
        taken = self._held[_Kind.NEW] + self._held[_Kind.SLOW]
        return max(0, min(_MAX_UNPROVEN - taken, self._free_senders()))


def _network_of(address: str) -> str:
    """Return the network that counts as one address: one host of IPv6 may have all of a /64."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed)


def _unexpired(times: Mapping[Name, float], now: float) -> dict[Name, float]:
    return {name: at for name, at in times.items() if now < at + _SLOW_S}
