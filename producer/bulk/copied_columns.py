"""Convert the columns of rows that are copied into the metadata to what JSON can hold.

Input: a value of any reader. Output: a value that is the same at every reading, or an error that
rejects the row.
"""

import math
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from imagefleet.producer.bulk.row_cells import is_missing
from imagefleet.producer.bulk.rows import RejectedRow, shown_value

_STORED_AS_TEXT: Final = (date, time, timedelta, Decimal, UUID, PurePath)
_MAX_DEPTH: Final = 64
"""Maximum nesting of objects and lists in a copied column; pydantic can read about 200."""


class RowRejected(Exception):
    """Ends the validation of a row."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        text = value if value is None or isinstance(value, str) else repr(value)
        self.rejected = RejectedRow(field, text and shown_value(text), reason)


def escape_surrogates(text: str) -> str:
    """Return `text` with lone surrogates (from invalid UTF-8) as escapes, so it can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_json_value(column: str, value: object, depth: int = 0) -> Any:
    """Convert a value to one that JSON can hold and that its readers can parse."""
    if depth > _MAX_DEPTH:
        raise RowRejected(column, "…", f"must not be nested over {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool | int | str | float):
        return _scalar_to_json_value(value)
    if is_missing(value):
        return None
    if isinstance(value, Mapping):
        return {
            escape_surrogates(str(name)): to_json_value(column, each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_json_value(column, each, depth + 1) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        raise RowRejected(column, type(value).__name__, "cannot be stored as metadata")
    if isinstance(value, _STORED_AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):  # numpy values, array.array
        return to_json_value(column, _numpy_to_python(value), depth + 1)
    # `str()` of other objects, as of images, holds a memory address: the plan would not repeat.
    raise RowRejected(
        column,
        type(value).__name__,
        "must be text, numbers, times, or lists and mappings of these",
    )


def _numpy_to_python(value: Any) -> Any:
    """Convert a numpy value to lists and numbers, and times to text.

    `tolist` would turn times in nanoseconds, which pandas uses, into plain integers. A time that is
    missing becomes None.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return _without_nat(value.astype(str).tolist()) if kind in ("m", "M") else value.tolist()


def _without_nat(times: Any) -> Any:
    """Return times as text, or lists of them, with None where numpy writes NaT, "not a time"."""
    if isinstance(times, list):
        return [_without_nat(each) for each in times]
    return None if times == "NaT" else times


def _scalar_to_json_value(
    value: bool | int | str | float | None,
) -> bool | int | str | float | None:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
