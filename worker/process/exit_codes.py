"""Exit codes of a worker process, for its supervisor. The numbers are those of sysexits.h."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a worker ended. After a complete drain the code is 0."""

    UNAVAILABLE = 69  # devices or storage failed for longer than `quarantine_s`
    SOFTWARE = 70  # a critical thread failed with an internal error
    IOERR = 74  # the devices made no step for `watchdog_s`
    TEMPFAIL = 75  # a second signal, a preempted host or an incomplete drain; its jobs are requeued
    CONFIG = 78  # a setting, Redis, the storage or the checkpoint is wrong; nothing was claimed
