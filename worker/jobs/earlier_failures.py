"""Say in the last error of a job on which workers it failed before.

Input: an error and the failed attempts of the record. Output: the error that is recorded. The
module uses neither Redis nor devices.
"""

from collections.abc import Sequence

from imagefleet.shared.errors import DeviceError, ImagefleetError, TooManyDeliveries
from imagefleet.shared.jobs.failed_attempts import (
    DEVICES_FAILED,
    WORKER_DIED,
    FailedAttempt,
    failed_alone,
)
from imagefleet.shared.text.printable import counted


def with_earlier_failures(
    error: ImagefleetError, failures: Sequence[FailedAttempt], worker: str
) -> ImagefleetError:
    """Return the error of a job that fails on `worker`. A device error names all workers on which
    the job failed alone."""
    before = failed_alone(failures)
    if not isinstance(error, DeviceError) or not before:
        return error
    workers = dict.fromkeys([*(each.worker for each in before), worker])
    tries = counted(len(before) + 1, "time")
    return DeviceError(
        f"it failed alone {tries} on devices that pass their health check "
        f"({', '.join(workers)}): {error}"
    )


def gave_up_after(
    error: TooManyDeliveries, failures: Sequence[FailedAttempt]
) -> TooManyDeliveries | DeviceError:
    """Return why a job is given up after too many deliveries: a device error if in most of them the
    devices failed and their workers lived, as far as the record says."""
    failed = [each for each in failures if each.code == DEVICES_FAILED]
    died = [each for each in failures if each.code == WORKER_DIED]
    if len(failed) > len(died):
        return DeviceError(
            f"the devices of {_names(failed)} failed with this job, and their workers were "
            f"quarantined; it is not tried again: {failed[-1].message}"
        )
    return TooManyDeliveries(f"{error} ({_names(died)})") if died else error


def _names(failures: Sequence[FailedAttempt]) -> str:
    return ", ".join(dict.fromkeys(each.worker for each in failures))
