"""Count what simulated workers do, and measure how long their claims take."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.lane_claims import LaneClaims


@dataclass
class Counted:
    """What the workers of one process did between `begin` and `end` (monotonic)."""

    begin: float = math.inf
    end: float = math.inf
    images: int = 0
    claims_s: list[float] = field(default_factory=list)
    """How long each claim of a batch took."""

    def add_images(self, at: float, images: int) -> None:
        if self.begin <= at < self.end:
            self.images += images

    def add_claim(self, began: float) -> None:
        if self.begin <= began < self.end:
            self.claims_s.append(time.monotonic() - began)


class TimedClaims(LaneClaims):
    """Claims whose time is measured, if they brought jobs."""

    counted: Counted

    def claim(self, groups: Sequence[QueueGroup], *args: Any, **options: Any) -> list[Claimed]:
        began = time.monotonic()
        claimed = super().claim(groups, *args, **options)
        if claimed:
            self.counted.add_claim(began)
        return claimed
