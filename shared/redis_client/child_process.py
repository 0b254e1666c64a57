"""Processes that must not outlive the one that started them, even if that one is killed with -9."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` for Popen. The kernel sends SIGTERM when the *thread* that started the process
    ends, so start it from the main one. Linux only; None elsewhere."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()

    def ask_the_kernel() -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask_the_kernel
