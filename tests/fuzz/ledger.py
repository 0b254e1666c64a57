"""Count what became of the cases, and remember what went wrong."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.cases import Case


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem is one sentence, and the cases that may have caused it."""

    sentence: str
    suspects: Sequence[str] = ()
    """Ids of cases; empty if any of the round may be the cause."""


@dataclass
class Ledger:
    """The ledger of a run."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of cases by kind and outcome."""
    highest: dict[str, float] = field(default_factory=dict)
    """The highest value of each measurement."""
    totals: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, outcome: str) -> None:
        """Count one case."""
        self.outcomes[kind, outcome] += 1

    def raise_to(self, measurement: str, value: float) -> None:
        """Note a measurement, of which the highest value is kept."""
        self.highest[measurement] = max(value, self.highest.get(measurement, value))

    def cases(self, kind: str) -> int:
        """Return how many cases of a kind were counted."""
        return sum(count for (each, _), count in self.outcomes.items() if each == kind)

    def table(self) -> str:
        """Return the ledger as a Markdown table."""
        rows = [
            (kind, outcome, str(count)) for (kind, outcome), count in sorted(self.outcomes.items())
        ]
        kinds = sorted({kind for kind, _ in self.outcomes})
        rows += [(kind, "**in all**", str(self.cases(kind))) for kind in kinds]
        rows += [("highest", name, f"{value:g}") for name, value in sorted(self.highest.items())]
        rows += [("in all", name, str(count)) for name, count in sorted(self.totals.items())]
        lines = ["| what | outcome | count |", "|---|---|---:|"]
        return "\n".join([*lines, *(f"| {a} | {b} | {c} |" for a, b, c in rows)])


def suspects_first(cases: Sequence[Case], problems: Sequence[Problem]) -> list[Case]:
    """Return the cases that the problems name, or all cases if they name none."""
    named = {case_id for problem in problems for case_id in problem.suspects}
    return [case for case in cases if case.id in named] or list(cases)


def holds_controls(text: str) -> bool:
    """Return whether a text holds control characters or lone surrogates. A tab is none here."""
    return any(unicodedata.category(each) in ("Cc", "Cs") and each != "\t" for each in text)
