"""Say which share of a TPU's peak the programs of a family of models reach.

The shares follow from what the TPU compiler estimates for whole programs; docs/tpu.md has these.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PeakShares:
    """They are the shares on one generation of TPUs, in bfloat16, with whole copies."""

    step_of_teraflop: float
    """It is that of a step with 1 TFLOP on a device."""
    step_growth: float
    """A step that has e times as many FLOPs reaches so much more."""
    step_flops: tuple[float, float]
    """They are the fewest and the most FLOPs of a step that was compiled."""
    decode: float
    """It is that of the decoder."""

    def step(self, flops: float) -> float | None:
        """Return the share of a step with these FLOPs on a device. None: none like it was
        compiled."""
        fewest, most = self.step_flops
        if not fewest <= flops <= most:
            return None
        return self.step_of_teraflop + self.step_growth * math.log(flops / 1e12)
