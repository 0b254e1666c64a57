"""Prefetch as late as possible: a claimed job can no longer be overtaken.

The next batch is claimed just early enough that the devices do not wait for it. Jobs that a worker
holds are beyond priorities and fair queueing.
"""

import math
import time
from collections.abc import Sequence
from typing import Final

from imagefleet.worker.devices.slots import Slot

_INITIAL_LEAD_S: Final = 0.05
_MARGIN: Final = 2.0
"""The lead is at least this many times the latest preparation time."""
_DECAY: Final = 0.9
"""The lead keeps at least this share of itself at each preparation."""


class PrefetchTimer:
    """Measures how long a step and the preparation of a batch take."""

    def __init__(self) -> None:
        self._lead_s = _INITIAL_LEAD_S
        self._step_s = math.inf
        self._started = 0.0

    @property
    def lead_s(self) -> float:
        """How long before the devices are free the next claim should be made."""
        return self._lead_s

    def should_prefetch(self, batch: Sequence[Slot], step: int) -> bool:
        """Return whether to claim the next batch now, after `step` steps of `batch` are done.

        True if, after one more step, less time than the lead would be left.
        """
        now = time.monotonic()
        if step == 0:
            self._started = now
        else:
            self._step_s = (now - self._started) / step
        live = [slot.spec.steps for slot in batch if not slot.work.ended]
        left = max(live, default=0) - step
        return left <= 1 or (left - 1) * self._step_s <= self._lead_s

    def record_preparation(self, seconds: float) -> None:
        """Learn from a batch that took `seconds` to prepare. A slow one is forgotten slowly."""
        self._lead_s = max(_MARGIN * seconds, _DECAY * self._lead_s)
