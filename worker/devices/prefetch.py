"""When the next batch should be claimed so that the devices do not wait for it, and no sooner: what
waits in a worker is beyond priorities and turns."""

import math
import time
from collections.abc import Sequence
from typing import Final

from imagefleet.worker.devices.work import Slot

_FIRST_LEAD_S: Final = 0.05
_MARGIN: Final = 2.0
_DECAY: Final = 0.9


class PrefetchTimer:
    """Learns how long a step takes, and the preparation of a batch."""

    def __init__(self) -> None:
        self._lead_s = _FIRST_LEAD_S
        self._step_s = math.inf
        self._began = 0.0

    def ends_soon(self, batch: Sequence[Slot], step: int) -> bool:
        """Whether `batch`, `step` steps of which are done, ends within the lead after the next
        step: asked again then, it would be too late."""
        now = time.monotonic()
        if step == 0:
            self._began = now
        else:
            self._step_s = (now - self._began) / step
        live = [slot.spec.steps for slot in batch if not slot.work.ended]
        left = max(live, default=0) - step
        return left <= 1 or (left - 1) * self._step_s <= self._lead_s

    def prepared(self, seconds: float) -> None:
        """How long it took to get a batch ready. A slow one is forgotten slowly."""
        self._lead_s = max(_MARGIN * seconds, _DECAY * self._lead_s)
