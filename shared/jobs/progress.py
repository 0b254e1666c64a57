"""What a running attempt reports of its progress, and whether it may go on.

`JobRecords.record_progress` sends reports to the server, which records them by `progress.lua`.
"""

from dataclasses import dataclass
from enum import IntEnum

from imagefleet.shared.jobs.callback_events import Callback
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.transitions import callback_args
from imagefleet.shared.redis_client.wrong_type_keys import is_wrong_type


class AttemptVerdict(IntEnum):
    """Whether an attempt may go on. The numbers are those that `progress.lua` returns."""

    GO_ON = 1
    CANCEL = 0  # the producer asked to cancel the job
    LOST = -1  # another attempt holds the job, or it has ended


def attempt_verdict(record: "list[str | None] | Exception", attempt: str) -> AttemptVerdict:
    """Return the verdict on `attempt`, given `state`, `attempt` and `cancel_requested` of a record,
    or the error of reading them. It is that of `progress.lua`."""
    if isinstance(record, Exception):
        if not is_wrong_type(record):
            raise record
        return AttemptVerdict.LOST
    if record[:2] != [State.RUNNING.value, attempt]:
        return AttemptVerdict.LOST
    return AttemptVerdict.CANCEL if record[2] is not None else AttemptVerdict.GO_ON


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """The progress of one attempt."""

    job_id: str
    attempt: str
    step: int
    """It counts the denoising steps done, of `steps`."""
    steps: int
    callback: Callback | None = None
    preview: str = ""
    """A data URL; empty if there is no new one."""
    only_check: bool = False
    """Whether nothing is recorded, and only the verdict is wanted: for Redis that is no write."""

    def arguments(self) -> tuple[str | int, ...]:
        """Return the arguments of `progress.lua` for this job."""
        step = "" if self.only_check else self.step
        return (self.attempt, step, self.steps, *callback_args(self.callback), self.preview)
