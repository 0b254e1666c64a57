"""A training stage's length in wall-clock minutes.

From the minutes that a stage may take and has taken follow its learning rate and whether to save. A
schedule over time instead of steps ends on time on a busy machine, too.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

WARM_UP_STEPS = 100
FINAL_RATE_SHARE = 0.01
"""The final learning rate, as a share of the highest."""


@dataclass(kw_only=True)
class TimeBudget:
    """The time budget of a stage. `spent_s` carries the time of earlier runs over a restart."""

    total_s: float
    spent_s: float = 0.0
    save_every_s: float = 120.0
    _started: float = field(default_factory=time.monotonic)
    _last_save: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        """Return the seconds spent on the stage, including earlier runs."""
        return self.spent_s + time.monotonic() - self._started

    def is_save_due(self) -> bool:
        """Return True once every `save_every_s`."""
        if time.monotonic() - self._last_save < self.save_every_s:
            return False
        self._last_save = time.monotonic()
        return True


def learning_rate(max_rate: float, *, step: int, fraction: float) -> float:
    """Return the learning rate: a warm-up over steps times a cosine over the stage's time."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * fraction))
    return max_rate * warm * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * cosine)
