"""Name the kinds of cases that are left out, each with its reason.

A kind belongs here only while the defect that it shows is known and not mended yet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.fuzz.cases import Case


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A kind of case that is left out."""

    name: str
    reason: str
    matches: Callable[[Case], bool]


LEFT_OUT: Final[tuple[LeftOut, ...]] = ()


def kind_left_out(case: Case) -> LeftOut | None:
    """Return the kind for which `case` is left out; None if it is tried."""
    return next((kind for kind in LEFT_OUT if kind.matches(case)), None)
