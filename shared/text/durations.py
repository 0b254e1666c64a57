"""Read durations as people write them: `90s`, `45m`, `12h`, `30d`."""

import re
from typing import Final

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_in(text: str) -> float:
    """Return the seconds that a whole number with a unit stands for. Raises ValueError."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise ValueError("must be a whole number with s, m, h or d, as in 12h or 30d")
    return float(int(parts[1]) * _SECONDS[parts[2]])


def parse_duration(value: object) -> float:
    """Return the seconds that `value` stands for: a text as of `seconds_in`, or a number.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else seconds_in(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be seconds, or a text as in 12h or 30d")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is too long") from None
