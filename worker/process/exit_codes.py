"""The exit code tells a supervisor why a worker ended. The numbers are those of sysexits.h."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a worker that failed or was stopped. It is 0 after a complete drain,
    and if the worker was stopped before it was ready."""

    UNAVAILABLE = 69  # devices or storage failed for longer than `quarantine_s`
    SOFTWARE = 70  # a critical thread failed with an internal error
    IOERR = 74  # the devices made no step for `watchdog_s`
    TEMPFAIL = 75  # a second signal, a preempted host or an incomplete drain; its jobs are requeued
    CONFIG = 78  # a setting, Redis, the storage or the checkpoint is wrong; nothing was claimed
