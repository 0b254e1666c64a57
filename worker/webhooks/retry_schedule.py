"""The published schedule of retries of a callback: fast at first, for three days in all."""

from collections.abc import Sequence
from random import uniform
from typing import Final

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0

RETRY_DELAYS_S: Final = (
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
"""A sender waits this many seconds after the first, second, … failed try. The last try follows the
last delay."""

_MAX_RETRY_AFTER_S: Final = 24 * _HOUR
_JITTER: Final = 0.2
"""Share by which each delay is longer or shorter at random, so that callbacks that failed together
are not retried together."""


def retry_delay_s(
    attempts: int, delays_s: Sequence[float] = RETRY_DELAYS_S, *, retry_after_s: float = 0.0
) -> float | None:
    """Return the seconds until the next try after `attempts` failed ones; None to give up.

    Args:
        retry_after_s: the receiver asked for at least this delay (`Retry-After`). It gets it, up to
            a day.
    """
    if attempts > len(delays_s):
        return None
    delay_s = delays_s[attempts - 1] * uniform(1 - _JITTER, 1 + _JITTER)
    return max(delay_s, min(retry_after_s, _MAX_RETRY_AFTER_S))
