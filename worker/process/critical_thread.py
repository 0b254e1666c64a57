"""Threads that the process must not outlive: without its device loop, lease keeper or courier a
worker would only look alive."""

import logging
import os
import threading
from collections.abc import Callable

from imagefleet.worker.process.exit_codes import ExitCode

log = logging.getLogger(__name__)


def critical_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A daemon thread, not started; if `target` raises, the process ends at once and its jobs run
    elsewhere as soon as its lease is over."""

    def run() -> None:
        try:
            target()
        except BaseException:
            log.critical("the %s thread died; so does this worker", name, exc_info=True)
            logging.shutdown()
            os._exit(ExitCode.SOFTWARE)

    return threading.Thread(target=run, name=name, daemon=True)
