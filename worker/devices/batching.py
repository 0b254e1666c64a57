"""Which waiting pictures share the next device batch, and whether it should wait for more."""

import time
from collections import deque
from collections.abc import Collection
from typing import Final

from imagefleet.worker.devices.work import Slot

_SUSPECT: Final = 3
"""At the second delivery already, one preempted batch would turn into many single runs. Later, and
the mates of a deadly prompt would share more of its deaths than they may have."""


def suspect_from(max_deliveries: int) -> int:
    """The delivery from which on a job runs alone: the third, and in its last try at any rate."""
    return max(2, min(_SUSPECT, max_deliveries - 1))


def next_batch(waiting: deque[Slot], capacity: int, max_deliveries: int) -> list[Slot]:
    """Remove and return up to `capacity` slots of one shape: of the job that arrived first, and of
    those most alike to it in steps, as a batch runs as long as its longest job.

    A job that already took several workers down gets a batch to itself, so that it takes no mates
    with it if it does so again.
    """
    live = deque(slot for slot in waiting if not slot.work.ended)
    waiting.clear()
    if not live:
        return []
    head = live[0]
    alone = _suspect(head, max_deliveries)

    def fits(slot: Slot) -> bool:
        if alone:
            return slot.work is head.work
        return slot.work.shape == head.work.shape and not _suspect(slot, max_deliveries)

    alike = sorted(filter(fits, live), key=lambda slot: _unlike(slot.spec.steps, head.spec.steps))
    batch = alike[:capacity]
    taken = set(batch)
    waiting.extend(slot for slot in live if slot not in taken)
    return batch


def _unlike(steps: int, longest: int) -> tuple[bool, int]:
    """Least for the longest that makes a batch no longer, else for the shortest, as in alike.lua.

    `longest` may be the head's: the longest so far gives the same order, as of what is longer the
    shortest comes first, and then fit only its equals, which come next.
    """
    return steps > longest, abs(steps - longest)


def _suspect(slot: Slot, max_deliveries: int) -> bool:
    return slot.work.deliveries >= suspect_from(max_deliveries)


class BatchTimeout:
    """Keeps a batch that is not full back for some time. A full one never waits."""

    def __init__(self, seconds: float, capacity: int) -> None:
        self._seconds = seconds
        self._capacity = capacity
        self._until: float | None = None

    def should_wait(self, waiting: Collection[Slot]) -> bool:
        """Whether `waiting` should stay where it is for now."""
        if not waiting or len(waiting) >= self._capacity:
            self._until = None
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now < self._until:
            return True
        self._until = None
        return False
