"""Count device batches, their slots and steps, and the time during which the devices are busy."""

import threading
import time
from collections.abc import Sequence

from imagefleet.worker.devices.row_backlog import RowSlot
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.process import metrics


class BatchMetrics:
    """Counts the batches of one device loop. Threads may share it."""

    def __init__(self, capacity: int) -> None:
        """
        Args:
            capacity: slots in a batch.
        """
        self._capacity = capacity
        self._busy_since: float | None = None
        self._stepped_at = 0.0
        self._lock = threading.Lock()

    def began(self, batch: Sequence[Slot]) -> None:
        """Count a batch whose first step begins now."""
        rows = sum(isinstance(slot, RowSlot) for slot in batch)
        metrics.BATCHES.inc()
        metrics.SLOTS.labels("row").inc(rows)
        metrics.SLOTS.labels("job").inc(len(batch) - rows)
        metrics.SLOTS.labels("padding").inc(self._capacity - len(batch))
        self._stepped_at = time.monotonic()

    def stepped(self, batch: Sequence[Slot]) -> None:
        """Count a step of the batch that the device thread denoises."""
        now = time.monotonic()
        metrics.STEP_SECONDS.labels(str(batch[0].work.shape)).observe(now - self._stepped_at)
        self._stepped_at = now
        self.set_busy(True)

    def set_busy(self, busy: bool) -> None:
        """Note whether the devices are busy from now on. Add the time since the last call, if they
        were."""
        with self._lock:
            now = time.monotonic()
            if self._busy_since is not None:
                metrics.BUSY_SECONDS.inc(now - self._busy_since)
            self._busy_since = now if busy else None
