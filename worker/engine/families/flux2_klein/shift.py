"""Shift the noise levels of FLUX.2 klein by the size of an image and the number of steps.

Input: tokens of an image, steps. Output: diffusers' `mu`, as its `compute_empirical_mu` has it. The
numbers were fitted by Black Forest Labs (FLUX.2, `sampling.py`).
"""

from dataclasses import dataclass
from typing import Final

_OF_10_STEPS: Final = (8.73809524e-05, 1.89833333)
_OF_200_STEPS: Final = (0.00016927, 0.45666666)
"""mu is slope * tokens + constant. Between these numbers of steps, and beyond, it is linear."""
_MOST_TOKENS: Final = 4300
"""Larger images have the mu of 200 steps, whatever their steps."""


@dataclass(frozen=True)
class EmpiricalShift:
    """It is an `ImageShift` for images of a number of tokens."""

    tokens: int

    def __call__(self, steps: int) -> float:
        """Return mu for a number of steps."""
        of_10, of_200 = (
            slope * self.tokens + constant for slope, constant in (_OF_10_STEPS, _OF_200_STEPS)
        )
        if self.tokens > _MOST_TOKENS:
            return of_200
        slope = (of_200 - of_10) / 190
        return slope * steps + (of_200 - 200 * slope)
