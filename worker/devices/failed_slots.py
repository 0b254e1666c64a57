"""Decide about slots that failed on the devices: halve them, or fail their job.

Both device loops do this. The health check decides first whether the devices are to blame.
"""

from collections.abc import Sequence

from imagefleet.shared.errors import DeviceError, ImagefleetError
from imagefleet.worker.devices.slots import Slot, work_in


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
