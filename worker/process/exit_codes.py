"""How a worker process may end, for whoever starts it again. Numbers from sysexits.h."""

from enum import IntEnum


class ExitCode(IntEnum):
    """0 is a drain that handed everything back or finished it."""

    UNAVAILABLE = 69  # devices or store failed for longer than `quarantine_s`
    SOFTWARE = 70  # a vital thread died of an internal error
    IOERR = 74  # the devices made no step for `watchdog_s`
    TEMPFAIL = 75  # a second signal, a preempted host, or a drain without end; others get the work
    CONFIG = 78  # a setting, Redis, the store or the checkpoint is wrong: nothing was taken
