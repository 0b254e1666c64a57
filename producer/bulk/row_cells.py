"""Convert cells of tables to the types of parameters. Pure functions."""

import math
import re
from contextlib import suppress
from typing import Final

from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, kind

_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
_KINDS: Final = {name: kind(name) for name in PARAMETERS}


def is_missing(value: object) -> bool:
    """Return whether it is an empty cell of a CSV file or a missing value of a data frame."""
    if isinstance(value, str):
        return not value
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # those of pandas


def converted(name: str, value: object) -> object:
    """Convert the cell of a parameter, if that is a whole number or a truth value.

    Return other values unchanged.
    """
    if _KINDS[name] is int:
        return _to_integer(value)
    if _KINDS[name] is bool and isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower(), value)
    return value


def _to_integer(value: object) -> object:
    """Convert a CSV cell, or a float from a column with missing values, to an integer if it is one.

    Such a column is one of floats for pandas, which writes `7.0` into a CSV file. Return other
    values unchanged.
    """
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        with suppress(ValueError):  # Python reads at most 4,300 digits
            return int(text)
        number = float(text)
        return int(number) if number.is_integer() else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
