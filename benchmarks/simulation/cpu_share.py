"""Give a process a share of one core, so that a small load fills it.

Input: a process and a share. The process is stopped for some milliseconds whenever it has used
more CPU time than its share. Output: nothing.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOOK_S: Final = 0.001


@contextmanager
def limited_to(pid: int, share: float) -> Iterator[None]:
    """Limit a process to `share` of a core, within the context. It needs Linux."""
    done = threading.Event()
    limiter = threading.Thread(target=_limit, args=(pid, share, done))
    limiter.start()
    try:
        yield
    finally:
        done.set()
        limiter.join()


def _limit(pid: int, share: float, done: threading.Event) -> None:
    started, used = time.monotonic(), _cpu_s(pid)
    while not done.is_set():
        time.sleep(_LOOK_S)
        uses = _cpu_s(pid)
        pause_s = (uses - used) / share - (time.monotonic() - started)
        if pause_s > 0:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pause_s)
            os.kill(pid, signal.SIGCONT)
        started, used = time.monotonic(), uses


def _cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process; its clock has this number on Linux."""
    return time.clock_gettime(~pid << 3 | 2)
