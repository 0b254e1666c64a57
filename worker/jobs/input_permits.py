"""Share out the permits of jobs that start from images.

Input: where the images of a job lie, and whose job it is. Output: whether the job gets a permit, or
for how long it should wait in Redis. So jobs whose images arrive slowly hold a bounded part of a
worker, and the other jobs go on. This module does not use Redis and fetches nothing.
"""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS

_MIN_PAUSE_S: Final = 2.0
_MAX_PAUSE_S: Final = 600.0
_RETURN_INTERVAL_S: Final = 0.02
"""Seconds between the returns of two delayed jobs of one tenant: claims see at most 50 a second."""
_CLEANUP_S: Final = 1.0

Holder = TypeVar("Holder", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The tenant of a job, and the hosts that its input images are fetched from."""

    tenant: str | None
    hosts: frozenset[str]
    """The host names are written in lower case, as in the addresses. The fleet's own store is no
    host."""


def image_source(request: object) -> ImageSource | None:
    """Return the source of the images of a request, which need not be valid; None if it has none.

    Args:
        request: fields by name, as in a job's message.
    """
    if not isinstance(request, dict):
        return None
    addresses = [request.get(name) for name in INPUT_FIELDS]
    starts = ("image", "latents", "control_image")
    if all(request.get(name) is None for name in starts):
        return None
    tenant = request.get("tenant")
    return ImageSource(
        tenant=tenant if isinstance(tenant, str) else None,
        hosts=frozenset(filter(None, map(_host, addresses))),
    )


def _host(address: object) -> str:
    if not isinstance(address, str) or not address.startswith(("http://", "https://")):
        return ""
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return ""  # the job is refused later, with a reason


class FairPermits(Generic[Holder]):
    """A fixed number of permits, of which some stay free for other tenants. Threads may share it.

    A tenant may hold as many permits as are free, and a host half as many. So one tenant gets at
    most half of all permits, two get a third each, and one host gets a third. Source of the rule:
    A. K. Choudhury and E. L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
    Switches", IEEE/ACM Transactions on Networking 6(2), 1998.
    """

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._held: dict[Holder, ImageSource] = {}
        self._lock = threading.Lock()

    def take(self, holder: Holder, source: ImageSource) -> bool:
        """Give `holder` a permit, and return True, if there is one for its source."""
        with self._lock:
            held = list(self._held.values())
            free = self._permits - len(held)
            of_tenant = sum(each.tenant == source.tenant for each in held)
            fits = of_tenant < free and all(
                2 * sum(host in each.hosts for each in held) < free for host in source.hosts
            )
            if fits:
                self._held[holder] = source
            return fits

    def release(self, holder: Holder) -> None:
        """Free the permit of `holder`, if it has one."""
        with self._lock:
            self._held.pop(holder, None)

    def release_unless(self, is_needed: Callable[[Holder], bool]) -> None:
        """Free the permits of all holders that do not need them any more."""
        with self._lock:
            self._held = {
                holder: source for holder, source in self._held.items() if is_needed(holder)
            }


class ReturnSchedule:
    """The schedule spreads the returns of delayed jobs, so that claims are not busy with them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_return: dict[str | None, float] = {}
        self._cleanup_at = 0.0

    def next_pause_s(self, tenant: str | None) -> float:
        """Return the seconds until the next delayed job of `tenant` should return."""
        now = self._clock()
        if now >= self._cleanup_at:
            self._cleanup_at = now + _CLEANUP_S
            self._last_return = {key: at for key, at in self._last_return.items() if at > now}
        after_last = self._last_return.get(tenant, 0.0) + _RETURN_INTERVAL_S
        returns_at = min(max(now + _MIN_PAUSE_S, after_last), now + _MAX_PAUSE_S)
        self._last_return[tenant] = returns_at
        return returns_at - now
