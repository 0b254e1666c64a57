"""Count the slots and steps of streams, and the time during which the devices are busy."""

import threading
import time

from imagefleet.worker.devices.row_backlog import RowSlot
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.process import metrics


class StreamMetrics:
    """Counts for all streams of a device loop. Threads share it."""

    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._lock = threading.Lock()

    def started(self, slot: Slot) -> None:
        """Count a slot that was filled."""
        metrics.SLOTS.labels("row" if isinstance(slot, RowSlot) else "job").inc()

    def stepped(self, slot: Slot, seconds: float) -> None:
        """Count a step of a stream in which `slot` runs."""
        metrics.STEP_SECONDS.labels(str(slot.work.shape)).observe(seconds)
        self.set_busy(True)

    def set_busy(self, busy: bool) -> None:
        """Note whether any stream is busy from now on. Add the time since the last call, if one
        was."""
        with self._lock:
            now = time.monotonic()
            if self._busy_since is not None:
                metrics.BUSY_SECONDS.inc(now - self._busy_since)
            self._busy_since = now if busy else None
