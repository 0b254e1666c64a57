"""The jobs in flight: the outcome of each claimed message, by the tag of its claim.

The key is the tag, not the id of the job, because a worker may hold two messages of one job.
"""

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.jobs.attempt import Attempt

Outcome = Attempt | ImagefleetError
"""An attempt that has started, or the reason why the job was refused."""


class InFlight:
    """Jobs between claim and acknowledgement. Safe to share between threads."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, tag: str, outcome: Outcome) -> None:
        """Record the outcome of claim `tag`."""
        self._outcomes[tag] = outcome

    def get(self, tag: str) -> Outcome | None:
        """Return the outcome of claim `tag`; None if its job had ended before."""
        return self._outcomes.get(tag)

    def remove(self, tag: str) -> Outcome | None:
        """Forget claim `tag` and return its outcome."""
        return self._outcomes.pop(tag, None)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that have started and are not removed yet."""
        outcomes = list(self._outcomes.values())  # pool threads remove some meanwhile
        return [each for each in outcomes if isinstance(each, Attempt)]
