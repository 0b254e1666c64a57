"""Let a wait go on while Redis is away."""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from imagefleet.shared.errors import BrokerUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")


class OutageTolerance:
    """One wait that outlives outages of Redis, until its deadline."""

    def __init__(self, deadline: float) -> None:
        """Take the deadline, a time of `time.monotonic`."""
        self.deadline: Final = deadline
        self.answered = False
        """Whether Redis has answered during this wait."""
        self._is_away = False

    def read(self, poll: Callable[[], T]) -> T | None:
        """Return what `poll` returns, or None while Redis is away.

        Raises:
            BrokerUnavailable: Redis did not answer the first poll, or not at the deadline.
        """
        try:
            answer = poll()
        except BrokerUnavailable as error:
            if not self.answered or time.monotonic() >= self.deadline:
                raise
            if not self._is_away:
                log.warning("%s. Waiting until it is back", error)
            self._is_away = True
            return None
        self.answered, self._is_away = True, False
        return answer
