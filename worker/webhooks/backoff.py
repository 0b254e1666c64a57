"""When a callback that failed is tried again: fast at first, for three days in all."""

from collections.abc import Sequence
from random import uniform
from typing import Final

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0

PAUSES: Final = (
    5.0,  # a dropped connection
    15.0,
    1 * _MINUTE,  # a restart
    5 * _MINUTE,
    30 * _MINUTE,  # a deployment that went wrong
    2 * _HOUR,
    5 * _HOUR,  # a night
    10 * _HOUR,
    14 * _HOUR,
    17 * _HOUR,
    24 * _HOUR,  # a weekend: 72 h 36 min after the event
)
"""Seconds to wait after the first, second, … failed try. The last pause leads to the last try."""

_LONGEST_ASKED: Final = 24 * _HOUR
_JITTER: Final = 0.2
"""Each pause is up to a fifth longer or shorter, so that what failed together returns spread."""


def pause_after(
    attempts: int, pauses: Sequence[float] = PAUSES, *, asked_s: float = 0.0
) -> float | None:
    """Seconds until the next try after `attempts` failed ones; None to give up.

    A receiver that asked for a longer pause (`Retry-After`) gets it, up to a day.
    """
    if attempts > len(pauses):
        return None
    drawn = pauses[attempts - 1] * uniform(1 - _JITTER, 1 + _JITTER)
    return max(drawn, min(asked_s, _LONGEST_ASKED))
