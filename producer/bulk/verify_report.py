"""Define what a verification of a dataset reports."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A difference between the dataset and its plan."""

    shard: str
    what: str
    """`unfinished`, `missing file`, `changed file`, `damaged file`, `missing samples`, `unplanned
    samples`, `repeated samples`, `wrong prompt or seed`, `wrong parameters`, `unplanned
    file`, `different image`, `not compared` or `damaged plan`."""
    detail: str
    samples: int = 0
    """Number of samples with the problem, if it is known."""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of a verification. `planned`, `present` and `failed` count samples."""

    shards: int
    planned: int
    present: int
    failed: int
    """Samples that could not be generated. The commit markers list them, so they are no problem."""
    regenerated_rows: int
    """Rows that were generated again."""
    regenerated: int
    """Their images, which were compared."""
    max_difference: int
    """No regenerated image differs by more levels, of 255."""
    problems: tuple[Problem, ...]

    @property
    def clean(self) -> bool:
        return not self.problems

    @property
    def unplanned_files(self) -> int:
        """Return the number of files that are not in the plan. Only the user may delete them."""
        return sum(problem.what == "unplanned file" for problem in self.problems)
