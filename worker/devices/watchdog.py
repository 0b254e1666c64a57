"""End a worker whose devices hang: its lease is renewed all the same, so nobody else would know.

Time is counted in looks of its own, not by a clock: a host that was frozen as a whole and thawed
has not hung.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from imagefleet.worker.process.critical_thread import critical_thread

log = logging.getLogger(__name__)

_LONGEST_LOOK_S: Final = 1.0
_LOOKS_A_LIMIT: Final = 4

Beats = Callable[[], int | None]
"""A number that changes with every sign of life; None while there is nothing to do."""


class Watchdog:
    """Calls `bite` once `beats` has stood still for `limit_s` while there was work."""

    def __init__(self, beats: Beats, bite: Callable[[], None], limit_s: float) -> None:
        self._beats = beats
        self._bite = bite
        self._limit_s = limit_s
        self._look_s = min(_LONGEST_LOOK_S, limit_s / _LOOKS_A_LIMIT)
        self._stopped = threading.Event()
        self._thread = critical_thread(self._loop, "watchdog")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _loop(self) -> None:
        last, still_s = None, 0.0
        while not self._stopped.wait(self._look_s):
            beat = self._beats()
            still_s = still_s + self._look_s if beat is not None and beat == last else 0.0
            last = beat
            if still_s >= self._limit_s:
                log.critical("the devices have made no step for %g s: they hang", self._limit_s)
                self._bite()
                return
