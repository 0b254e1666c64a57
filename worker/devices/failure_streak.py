"""Tell a host on which everything fails from prompts that fail everywhere.

Input: works that failed alone on devices which then generated a known image of one step, and images
that were delivered in between. Output: whether the host is to blame. Two things blame it: jobs that
failed here in a row succeeded elsewhere, or, after many failures in a row, a whole batch of the
known image fails, too. Prompts alone never do. The module depends on neither jobs nor Redis.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from imagefleet.worker.devices.slots import Slot, Work, work_in

log = logging.getLogger(__name__)

MIN_SUCCEEDED_ELSEWHERE: Final = 3
"""So many jobs that failed here in a row, and succeeded on other workers, blame the host."""
MAX_CONSECUTIVE_FAILURES: Final = 16
"""After so many failures in a row the devices generate a whole batch of the known image."""
_MAX_REMEMBERED: Final = 64

CountSucceeded = Callable[[Sequence[Work]], int]
"""It returns how many of these works, which failed here, have succeeded meanwhile."""


def count_none(works: Sequence[Work]) -> int:
    """Return 0, where nothing is known of other workers."""
    return 0


class FailureStreak:
    """The failures of one worker since its devices finished an image. Threads may share it."""

    def __init__(self, count_succeeded: CountSucceeded = count_none) -> None:
        self._count_succeeded = count_succeeded
        self._failed: dict[str, Work] = {}
        """It keeps the latest work of each job by its id, the oldest first. Rows of datasets have
        none, and nobody else makes them."""
        self._unchecked = 0
        self._lock = threading.Lock()

    def add(self, slots: Sequence[Slot]) -> None:
        """Note that the work of `slots` failed alone, and that the devices pass their check."""
        with self._lock:
            for work in work_in(slots):
                self._failed.pop(work.name, None)
                if work.name:
                    self._failed[work.name] = work
            while len(self._failed) > _MAX_REMEMBERED:
                del self._failed[next(iter(self._failed))]
            self._unchecked += 1

    def end(self) -> None:
        """Note that the devices have finished an image."""
        with self._lock:
            self._failed.clear()
            self._unchecked = 0

    def is_long(self) -> bool:
        """Return whether enough jobs failed in a row to blame this host."""
        with self._lock:
            return len(self._failed) >= MIN_SUCCEEDED_ELSEWHERE

    def proof(self) -> str:
        """Return the sentence that blames this host because others succeeded; else nothing."""
        with self._lock:
            failed = list(self._failed.values())
        if len(failed) < MIN_SUCCEEDED_ELSEWHERE:
            return ""
        succeeded = self._count_succeeded(failed)
        if succeeded < MIN_SUCCEEDED_ELSEWHERE:
            return ""
        return f"of {len(failed)} jobs that failed here in a row {succeeded} succeeded elsewhere"

    def needs_whole_batch(self) -> bool:
        """Return whether so many failed in a row that one step of one image proves too little."""
        with self._lock:
            return self._unchecked >= MAX_CONSECUTIVE_FAILURES

    def whole_batch_passed(self) -> None:
        """Note that the devices generated a whole batch: the prompts are to blame."""
        log.warning("a whole batch of the known image succeeded: the prompts are to blame")
        with self._lock:
            self._unchecked = 0
