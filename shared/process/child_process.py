"""Start child processes that end with their parent, even if it is killed with SIGKILL."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` for Popen; None on systems other than Linux.

    The kernel sends SIGTERM to the child when the *thread* that started it ends, so start it from
    the main thread.
    """
    if sys.platform != "linux":
        return None
    parent = os.getpid()

    def set_death_signal() -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the signal was set
            os._exit(1)

    return set_death_signal
