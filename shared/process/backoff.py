"""Compute the pause before the next try: exponential backoff with jitter.

Source: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 4 March 2015,
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from enum import Enum
from random import uniform
from typing import Final

_MAX_EXPONENT: Final = 64
"""A larger power would overflow a float at last; this one exceeds every pause in use."""


class Jitter(Enum):
    """Which part of a pause is random."""

    NONE = "none"
    """No part: for a single thread that polls or waits."""
    EQUAL = "equal"
    """One half, the "Equal Jitter" of the source: clients that failed together return spread, and
    none returns at once, as it might with "Full Jitter"."""


def backoff_s(
    retries: int,
    *,
    min_s: float,
    max_s: float,
    factor: float = 2.0,
    jitter: Jitter = Jitter.EQUAL,
) -> float:
    """Return the seconds to wait before retry number `retries`, counted from 0.

    The pause is `min_s * factor ** retries`, at most `max_s`. Equal jitter draws it from its upper
    half: at least `min_s / 2`, at most `max_s`.
    """
    pause_s = min(min_s * factor ** min(retries, _MAX_EXPONENT), max_s)
    return pause_s if jitter is Jitter.NONE else uniform(0.5, 1.0) * pause_s
