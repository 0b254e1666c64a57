"""Check arguments of public calls. Pure functions."""

from typing import Any

from imagefleet.shared.errors import InvalidRequest


def plain_value(value: Any) -> Any:
    """Return the Python value of a numpy scalar, as np.int64(7), and any other value as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def check_whole_number(field: str, value: object, low: int, high: int | None = None) -> None:
    """Raise InvalidRequest unless `value` is an int, and from `low` to `high`; None: no end."""
    if type(value) is int and low <= value and (high is None or value <= high):
        return
    limits = f"between {low} and {high:,}" if high is not None else f"of at least {low}"
    raise InvalidRequest(field, value, f"must be a whole number {limits}")


def check_not_data_frame(field: str, rows: object) -> None:
    """Raise InvalidRequest for a data frame, whose iteration yields the names of its columns."""
    if hasattr(rows, "columns") and hasattr(rows, "to_dict"):
        limit = 'is a data frame; pass its rows, as in df.to_dict("records")'
        raise InvalidRequest(field, type(rows).__name__, limit)
