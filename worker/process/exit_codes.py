"""The exit code tells a supervisor why a worker ended. The numbers are those of sysexits.h."""

from enum import IntEnum

from imagefleet.shared.errors import DeviceError, ImagefleetError


class ExitCode(IntEnum):
    """The exit code of a worker that failed or was stopped. It is 0 after a complete drain,
    and if the worker was stopped before it was ready."""

    # Devices or storage failed for longer than `quarantine_s`, or the devices at the start.
    UNAVAILABLE = 69
    SOFTWARE = 70  # a critical thread failed with an internal error
    IOERR = 74  # the devices made no step for `watchdog_s`
    # A second signal, SIGQUIT or an incomplete drain, and its jobs are requeued; or at the
    # start Redis, the storage or the Hub could not be reached, and nothing was claimed.
    TEMPFAIL = 75
    CONFIG = 78  # a setting, Redis, the storage or the checkpoint is wrong; nothing was claimed


def exit_code_of(error: ImagefleetError) -> ExitCode:
    """Return the exit code of a start that ended with this error: whether a later one may succeed
    without a change, and on this host."""
    if isinstance(error, DeviceError):
        return ExitCode.UNAVAILABLE
    return ExitCode.TEMPFAIL if error.retryable else ExitCode.CONFIG
