"""Choose which waiting images share the next device batch, and whether it waits for more."""

import time
from collections import deque
from collections.abc import Collection
from typing import Final

from imagefleet.worker.devices.slots import Slot

_SUSPECT_DELIVERIES: Final = 3
"""With 2, one preempted batch would turn into many batches of one job. With more than 3, the other
jobs of a batch with a deadly prompt would take part in more of its crashes than they may."""


def first_suspect_delivery(max_deliveries: int) -> int:
    """Return the delivery from which on a job runs alone: the third, or the last one if earlier,
    but never the first."""
    return max(2, min(_SUSPECT_DELIVERIES, max_deliveries - 1))


def next_batch(waiting: deque[Slot], capacity: int, max_deliveries: int) -> list[Slot]:
    """Remove and return up to `capacity` slots of one shape.

    The job that arrived first comes first. Slots with like step counts follow (step affinity),
    because a batch runs as long as its longest job. A suspect job gets a batch of its own, so that
    it takes no other job with it if it ends its worker again.
    """
    live = deque(slot for slot in waiting if not slot.work.ended)
    waiting.clear()
    if not live:
        return []
    head = live[0]
    head_is_suspect = _is_suspect(head, max_deliveries)
    head.work.alone = head.work.alone or head_is_suspect

    def fits(slot: Slot) -> bool:
        if head_is_suspect:
            return slot.work is head.work
        return slot.work.shape == head.work.shape and not _is_suspect(slot, max_deliveries)

    by_affinity = sorted(
        filter(fits, live), key=lambda slot: _affinity_order(slot.spec.steps, head.spec.steps)
    )
    batch = by_affinity[:capacity]
    taken = set(batch)
    waiting.extend(slot for slot in live if slot not in taken)
    return batch


def _affinity_order(steps: int, head_steps: int) -> tuple[bool, int]:
    """Return the sort key of a slot beside a head of `head_steps`, as in step_affinity.lua.

    Slots that make the batch no longer come first, the longest of them first. The others follow,
    the shortest first. Beside a head of 20 steps, slots of 4, 20, 21, 50 and 19 steps join in the
    order 20, 19, 4, 21, 50. The script compares with the longest slot chosen so far instead of the
    head. The order is the same: after 21 was chosen, only further slots of 21 would precede 50,
    and they come next here too.
    """
    return steps > head_steps, abs(steps - head_steps)


def _is_suspect(slot: Slot, max_deliveries: int) -> bool:
    return slot.work.deliveries >= first_suspect_delivery(max_deliveries)


class BatchTimeout:
    """Decides how long a batch that is not full waits for more jobs. A full batch never waits."""

    def __init__(self, seconds: float, capacity: int) -> None:
        self._seconds = seconds
        self._capacity = capacity
        self._deadline: float | None = None

    def should_wait(self, waiting: Collection[Slot]) -> bool:
        """Return whether the slots in `waiting` should wait for more."""
        if not waiting or len(waiting) >= self._capacity:
            self._deadline = None
            return False
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now < self._deadline:
            return True
        self._deadline = None
        return False
