"""Compare our images with those of diffusers, case by case, and count.

Input: the outcomes of both sides. Output: a verdict for each case and a table.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_LEVELS: Final = 1
"""Levels of 255 by which equal images may differ, from rounding."""
_SHOWN: Final = 10


class Verdict(StrEnum):
    """How the two sides compare."""

    EQUAL = "equal"
    REFUSED = "refused by us"
    REFUSED_BY_BOTH = "refused by both"
    RUN_HERE_ONLY = "refused by diffusers only"
    DIFFERENT = "silently different"
    CRASHED = "crashed"


FAILURES: Final = (Verdict.DIFFERENT, Verdict.CRASHED)


_LISTED: Final = (Verdict.RUN_HERE_ONLY, *FAILURES)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one side did: images, or an error."""

    images: NDArray[np.uint8] | None = None
    """uint8 `[2, h, w, 3]`."""
    error: str = ""
    crashed: bool = False
    """Whether the error is none that the engine raises on purpose."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One case in the ledger."""

    case: str
    verdict: Verdict
    levels: float = 0.0
    """The largest difference between the images, in levels of 255."""
    ours: str = ""
    theirs: str = ""
    """The errors."""
    changes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the entry in several lines."""
        lines = [f"{self.verdict}: case {self.case} ({self.levels:.0f} levels)", *self.changes]
        lines += [f"ours: {self.ours}"] * bool(self.ours)
        lines += [f"diffusers: {self.theirs}"] * bool(self.theirs)
        return "\n    ".join(lines)


def compare(case: str, ours: Outcome, theirs: Outcome, changes: tuple[str, ...] = ()) -> Entry:
    """Return the entry of a case."""
    verdict, levels = Verdict.EQUAL, 0.0
    if ours.crashed:
        verdict = Verdict.CRASHED
    elif ours.images is None:
        verdict = Verdict.REFUSED if theirs.images is not None else Verdict.REFUSED_BY_BOTH
    elif theirs.images is None:
        verdict = Verdict.RUN_HERE_ONLY
    elif ours.images.shape != theirs.images.shape:
        verdict, levels = Verdict.DIFFERENT, 255.0
    else:
        levels = float(np.abs(ours.images.astype(int) - theirs.images).max())
        verdict = Verdict.EQUAL if levels <= MAX_LEVELS else Verdict.DIFFERENT
    return Entry(
        case=case,
        verdict=verdict,
        levels=levels,
        ours=ours.error,
        theirs=theirs.error,
        changes=changes,
    )


@dataclass
class Ledger:
    """The entries of a run."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def failures(self) -> list[Entry]:
        """Return the entries that must not be."""
        return [entry for entry in self.entries if entry.verdict in FAILURES]

    def numbers(self) -> dict[str, Any]:
        """Return the counts, and the largest difference between equal images."""
        counts = Counter(entry.verdict for entry in self.entries)
        equal = [entry.levels for entry in self.entries if entry.verdict is Verdict.EQUAL]
        return {
            "checkpoints": len(self.entries),
            **{str(verdict): counts[verdict] for verdict in Verdict},
            "largest difference of equal images": max(equal, default=0.0),
            "equal to the last level": sum(levels == 0 for levels in equal),
        }

    def table(self) -> str:
        """Return the counts, the commonest refusals and the failures."""
        lines = [f"{name:36} {value:>8g}" for name, value in self.numbers().items()]
        refused = (entry for entry in self.entries if entry.verdict is Verdict.REFUSED)
        reasons = Counter(entry.ours[:110].replace("\n", " ") for entry in refused)
        lines += ["", "the commonest refusals of what diffusers runs:"]
        lines += [f"{count:6} {reason}" for reason, count in reasons.most_common(_SHOWN)]
        lines += ["", *(entry.describe() for entry in self.entries if entry.verdict in _LISTED)]
        return "\n".join(lines)
