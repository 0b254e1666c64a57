"""Decide about slots that failed on the devices: halve them, or fail their job.

Both device loops do this. The health check decides first whether the devices are to blame.
"""

import logging
from collections.abc import Sequence

from imagefleet.shared.errors import DeviceError, ImagefleetError
from imagefleet.shared.text.printable import counted
from imagefleet.worker.devices.slots import Slot, work_in
from imagefleet.worker.process.log_format import log_fields

log = logging.getLogger(__name__)


def log_failure(slots: Sequence[Slot], error: BaseException, *, traceback: bool = True) -> None:
    """Log that a batch failed, and which jobs it had. A job that was alone has its log line."""
    names = [work.name for work in work_in(slots) if work.name]
    what = counted(len(slots), "image") + (f" ({', '.join(names)})" if names else "")
    with log_fields(**{"job_id" if len(names) == 1 else "job_ids": ",".join(names) or None}):
        log.error("a batch of %s failed: %s", what, error, exc_info=error if traceback else None)


def is_job_error(error: BaseException) -> bool:
    """Return whether an error is about a job, so that no device need be checked."""
    return isinstance(error, ImagefleetError) and not isinstance(error, DeviceError)


def halves_of(slots: Sequence[Slot]) -> tuple[list[Slot], list[Slot]] | None:
    """Return the slots in two halves by job, or by row; None if they are all of one."""
    works = work_in(slots)
    if len(works) < 2:
        return None
    first = set(works[: len(works) // 2])
    return (
        [slot for slot in slots if slot.work in first],
        [slot for slot in slots if slot.work not in first],
    )


def fail_work(slots: Sequence[Slot], error: BaseException) -> None:
    """Fail the jobs or rows of slots. An error of a runtime becomes a DeviceError."""
    if not isinstance(error, ImagefleetError):
        error = DeviceError(f"{type(error).__name__}: {error}")
    for work in work_in(slots):
        work.abandon(error)


def abandon_for_quarantine(slots: Sequence[Slot]) -> None:
    """Let other workers take the jobs or rows of slots, since these devices fail."""
    fail_work(slots, DeviceError("the devices of this worker fail; it takes no work for now"))
