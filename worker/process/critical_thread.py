"""Threads without which the process must not go on.

Without its device loop, lease keeper or delivery loop a worker would look alive and do nothing.
"""

import logging
import os
import threading
from collections.abc import Callable

from imagefleet.worker.process.exit_codes import ExitCode

log = logging.getLogger(__name__)


def critical_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Return a daemon thread that is not started. If `target` raises, the process ends at once.

    Other workers reclaim its jobs when its lease expires.
    """

    def run() -> None:
        try:
            target()
        except BaseException:
            log.critical("the %s thread failed; this worker ends", name, exc_info=True)
            logging.shutdown()
            os._exit(ExitCode.SOFTWARE)

    return threading.Thread(target=run, name=name, daemon=True)
