"""The jobs in this worker's hands: what each claimed message came to, by the tag of its claim.

Known by the tag and never by the job's id: the same job may be here twice.
"""

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.jobs.attempt import Attempt

Outcome = Attempt | ImagefleetError
"""An attempt that has begun, or the reason why the job was refused."""


class InFlight:
    """Jobs between claim and acknowledgement. Safe to share between threads."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, tag: str, outcome: Outcome) -> None:
        """Record what the message of claim `tag` came to."""
        self._outcomes[tag] = outcome

    def get(self, tag: str) -> Outcome | None:
        """Return the outcome of claim `tag`; None if its job had ended before."""
        return self._outcomes.get(tag)

    def remove(self, tag: str) -> Outcome | None:
        """Forget claim `tag` and return its outcome."""
        return self._outcomes.pop(tag, None)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that have begun and are not removed yet."""
        outcomes = list(self._outcomes.values())  # pool threads remove some of them meanwhile
        return [each for each in outcomes if isinstance(each, Attempt)]
