"""Log what a start of minutes does, again and again, so that nobody takes the worker for dead."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger(__name__)

_EVERY_S: Final = 20.0


class StartLog:
    """Logs the stages of one start, with the seconds since the first of them."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._started: float | None = None

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Log `what` is done now, and every 20 s that it still is, until the block ends."""
        self._started = started = self._started or time.monotonic()
        log.info("%s, %.0f s so far", what, time.monotonic() - started)
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(self._every_s):
                log.info("still %s, %.0f s so far", what, time.monotonic() - started)

        thread = threading.Thread(target=repeat, name="start-log", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
