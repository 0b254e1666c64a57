"""Name the kinds of cases that are left out, each with its reason.

A kind belongs here only while the defect that it shows is known and not mended yet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.fuzz.cases import AnswerCase, Case


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A kind of case that is left out."""

    name: str
    reason: str
    matches: Callable[[Case], bool]


def _is_image_without_status_line(case: Case) -> bool:
    if not isinstance(case, AnswerCase) or case.role == "callback":
        return False
    words = b"".join(part.data for part in case.parts)[:40].split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    # After a status 100 the client takes what follows as the status line.
    return not (words[0].startswith(b"HTTP/1.") and 100 < status < 1_000)


LEFT_OUT: Final = (
    LeftOut(
        name="image servers that send no valid status line",
        reason="the raw line, of any length and with control characters, gets into record and "
        "dead letter (worker/jobs/input_images.py)",
        matches=_is_image_without_status_line,
    ),
)


def kind_left_out(case: Case) -> LeftOut | None:
    """Return the kind for which `case` is left out; None if it is tried."""
    return next((kind for kind in LEFT_OUT if kind.matches(case)), None)
