"""What a running attempt reports of its progress, and what it is told.

`JobRecords.progress` sends reports to the server, which records them by `progress.lua`.
"""

from dataclasses import dataclass
from enum import IntEnum

from imagefleet.shared.jobs.callback_events import Callback
from imagefleet.shared.jobs.transitions import callback_args


class ProgressAnswer(IntEnum):
    """The answer to a report. The numbers are those that `progress.lua` returns."""

    GO_ON = 1
    CANCEL = 0  # the producer asked to cancel the job
    LOST = -1  # another attempt holds the job, or it has ended


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """The progress of one attempt."""

    job_id: str
    attempt: str
    step: int
    """Denoising steps done, of `steps`."""
    steps: int
    callback: Callback | None = None
    preview: str = ""
    """A data URL; empty if there is no new one."""
    only_ask: bool = False
    """Whether nothing is recorded, and only the answer is wanted: for Redis that is no write."""

    def arguments(self) -> tuple[str | int, ...]:
        """Return the arguments of `progress.lua` for this job."""
        step = "" if self.only_ask else self.step
        return (self.attempt, step, self.steps, *callback_args(self.callback), self.preview)
