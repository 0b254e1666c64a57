"""Define what readers yield for a row of a table: a prompt, columns, or why it cannot be read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from imagefleet.shared.text.printable import mask_credentials

_MAX_SHOWN_CHARS: Final = 60
"""An error shows at most this many characters of a wrong value."""
_MAX_MASKED_CHARS: Final = 300
"""Characters of a wrong value in which credentials are looked for. At worst the search takes the
cube of their number, and a stranger may have written them."""
_REST_OF_CREDENTIALS: Final = re.compile(r"[^\s'\"]*@")


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that cannot be read or planned, with the reason."""

    field: str
    value: str | None
    """None if the field has no value."""
    reason: str


Row = str | Mapping[str, Any] | RejectedRow


def shown_value(value: str) -> str:
    """Return the beginning of the value of a rejected row, without credentials of addresses."""
    head = value[:_MAX_MASKED_CHARS]
    if _REST_OF_CREDENTIALS.match(value, _MAX_MASKED_CHARS):
        head += "@"  # else the first half of a long password would not be masked
    return mask_credentials(head)[:_MAX_SHOWN_CHARS]


def row_of(row: object) -> Row:
    """Return an element of an iterable or a file as a row. Reject what cannot be one."""
    if isinstance(row, str | Mapping | RejectedRow):
        return row
    return RejectedRow("row", shown_value(repr(row)), "must be a prompt, or an object of columns")
