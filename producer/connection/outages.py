"""Let a wait go on while Redis is away."""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from imagefleet.shared.errors import BrokerUnavailable, InvalidRequest

RETRY_S: Final = 0.25
"""Seconds between two reads of an answer that is awaited while Redis is away."""
GRACE_S: Final = 2.0
"""Seconds after the deadline in which Redis may still answer the last read."""

log = logging.getLogger(__name__)
T = TypeVar("T")


def deadline_of(timeout: float | None) -> float:
    """Return when a wait of `timeout` seconds that begins now is over, by `time.monotonic`.

    Raises:
        InvalidRequest: it is not a number.
    """
    is_number = isinstance(timeout, int | float) and not math.isnan(timeout)
    if timeout is not None and not is_number:
        raise InvalidRequest("timeout", timeout, "must be a number of seconds")
    return math.inf if timeout is None else time.monotonic() + timeout


class OutageTolerance:
    """The tolerance of one wait, or of several in a row, for outages of Redis."""

    def __init__(self, deadline: float = float("inf")) -> None:
        """Take the deadline, a time of `time.monotonic`. A later wait may set a new one."""
        self.deadline = deadline
        self.answered = False
        """Whether Redis has answered during these waits."""
        self._is_away = False

    def read(self, poll: Callable[[], T]) -> T | None:
        """Return what `poll` returns, or None while Redis is away.

        Raises:
            BrokerUnavailable: Redis did not answer the first poll, or not at the deadline.
        """
        try:
            answer = _answer_by(self.deadline, poll)
        except BrokerUnavailable as error:
            if not self.answered or time.monotonic() >= self.deadline:
                raise
            if not self._is_away:
                log.warning("%s. Waiting until it is back", error)
            self._is_away = True
            return None
        self.answered, self._is_away = True, False
        return answer

    def await_answer(self, poll: Callable[[], T]) -> T:
        """Return what `poll`, which never returns None, returns once Redis answers.

        Raises:
            BrokerUnavailable: as `read`.
        """
        while (answer := self.read(poll)) is None:
            time.sleep(RETRY_S)
        return answer


def _answer_by(deadline: float, poll: Callable[[], T]) -> T:
    """Return what `poll` returns.

    A command to a server that hangs ends by its socket timeout, after several attempts, which may
    be long after the deadline. So the poll runs in a thread, which is left to itself then.

    Raises:
        BrokerUnavailable: `poll` has not returned `GRACE_S` after the deadline.
    """
    if math.isinf(deadline):
        return poll()
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(poll())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="imagefleet-poll", daemon=True).start()
    try:
        return answer.result(max(0.0, deadline - time.monotonic()) + GRACE_S)
    except TimeoutError:
        if answer.done():  # the poll itself raised it
            raise
        raise BrokerUnavailable("Redis did not answer before the timeout of the wait") from None
