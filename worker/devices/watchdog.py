"""End a worker whose devices hang. Its lease is still renewed, so no other worker would notice.

The watchdog counts its own checks instead of reading a clock: a host that was frozen as a whole and
then resumed has not hung.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

from imagefleet.worker.process.critical_thread import critical_thread

log = logging.getLogger(__name__)

_MAX_CHECK_INTERVAL_S: Final = 1.0
_CHECKS_PER_LIMIT: Final = 4

ProgressCounts = Callable[[], Sequence[int | None]]
"""Returns for each stream of the devices a number that grows with every sign of progress; None
while it has nothing to do."""


class Watchdog:
    """Calls `on_hang` once, with the number of the stream, if a count of `progress_counts` stays
    the same for `limit_s` while there is work."""

    def __init__(
        self, progress_counts: ProgressCounts, on_hang: Callable[[int], None], limit_s: float
    ) -> None:
        self._progress_counts = progress_counts
        self._on_hang = on_hang
        self._limit_s = limit_s
        self._interval_s = min(_MAX_CHECK_INTERVAL_S, limit_s / _CHECKS_PER_LIMIT)
        self._stopped = threading.Event()
        self._thread = critical_thread(self._loop, "watchdog")

    def start(self) -> None:
        """Start the thread that checks."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._stopped.set()

    def _loop(self) -> None:
        last: Sequence[int | None] = ()
        unchanged_s: dict[int, float] = {}
        while not self._stopped.wait(self._interval_s):
            counts = self._progress_counts()
            for stream, (count, before) in enumerate(zip_longest(counts, last)):
                same = count is not None and count == before
                unchanged_s[stream] = unchanged_s.get(stream, 0.0) + self._interval_s if same else 0
                if unchanged_s[stream] >= self._limit_s:
                    log.critical("the devices have made no step for %g s: they hang", self._limit_s)
                    self._on_hang(stream)
                    return
            last = counts
