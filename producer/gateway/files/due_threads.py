"""Run threads that work on what is due, until the gateway ends."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from imagefleet.producer.connection.outages import RETRY_S
from imagefleet.shared.errors import BrokerUnavailable

log = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
"""Seconds between two looks if nothing is due."""


class DueThreads:
    """These threads of one gateway call one function again and again."""

    def __init__(self, name: str, count: int, work: Callable[[], bool]) -> None:
        """
        Args:
            name: of the threads.
            work: does one piece of work, and returns whether there was one. It may raise anything.
        """
        self._name = name
        self._count = count
        self._work = work
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the threads. They end with the process, or when this is closed."""
        for _ in range(self._count):
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Begin nothing new. What is begun goes on elsewhere if this process ends."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        """Return whether the gateway ends, so that long work had better stop."""
        return self._closed.is_set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if not self._work():
                    self._closed.wait(_IDLE_S)
            except BrokerUnavailable as error:
                log.warning("%s. Waiting until it is back", error)
                self._closed.wait(RETRY_S)
            except Exception:  # of any kind: the work of others would wait for ever
                if self._closed.is_set():  # Redis may be closed in the middle of a call
                    return
                log.exception("%s: a piece of work could not be done", self._name)
                self._closed.wait(RETRY_S)
