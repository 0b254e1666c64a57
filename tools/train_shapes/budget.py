"""Wall-clock minutes as the length of a training stage.

Goes in: how many minutes a stage may take and how many it has already taken. Comes out:
the part spent, the learning rate that goes with it, and whether to save. A schedule over
time rather than steps ends when promised, however busy the machine is.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

WARM_UP_STEPS = 100
LAST_RATE = 0.01
"""The final learning rate, as a part of the highest."""


@dataclass(kw_only=True)
class Budget:
    """A stop-watch that survives a restart through `spent_s`."""

    total_s: float
    spent_s: float = 0.0
    save_every_s: float = 120.0
    _started: float = field(default_factory=time.monotonic)
    _last_save: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        """Seconds spent on the stage, earlier runs counted in."""
        return self.spent_s + time.monotonic() - self._started

    def is_save_due(self) -> bool:
        """True once every `save_every_s`."""
        if time.monotonic() - self._last_save < self.save_every_s:
            return False
        self._last_save = time.monotonic()
        return True


def learning_rate(highest: float, *, step: int, fraction: float) -> float:
    """Warm-up over steps, then a cosine over the stage's time."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * fraction))
    return highest * warm * (LAST_RATE + (1 - LAST_RATE) * cosine)
