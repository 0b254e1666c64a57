"""Limit how many rows of a run may be rejected: a number of rows, or a percentage of all."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.arguments import plain_value
from imagefleet.shared.text.printable import counted

_FORM: Final = re.compile(r"([0-9]{1,9})|([0-9]{1,3}(?:\.[0-9]{1,6})?)%")


@dataclass(frozen=True)
class RejectedLimit:
    """The most rows that may be rejected."""

    text: str
    """It is what the user gave."""
    number: Fraction
    is_share: bool
    """Whether the number is a part of all rows, from 0 to 1."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the limit that a user gave, as 10, "10" or "2.5%". Raise InvalidRequest for any
        other value."""
        plain = plain_value(value)
        text = str(plain) if isinstance(plain, int | str) and plain is not True else ""
        found = _FORM.fullmatch(text)
        share = Fraction(found[2]) / 100 if found and found[2] else None
        if found is None or (share is not None and share > 1):
            limit = "must be a number of rows of at least 0, or from 0% to 100%, as in 2.5%"
            raise InvalidRequest("max_rejected", value, limit)
        return cls(text, Fraction(found[1]) if share is None else share, share is not None)

    def exceeded(self, rejected: int, rows: int) -> InvalidRequest | None:
        """Return the error of a run with more rejected rows; None if it may start.

        Args:
            rows: all rows of the input.
        """
        most = self.number * rows if self.is_share else self.number
        if rejected <= most:
            return None
        limit = f"{rejected:,} of {counted(rows, 'row')} are rejected; --dry-run lists them"
        return InvalidRequest("max_rejected", self.text, limit)
