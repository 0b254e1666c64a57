"""The callbacks of a fleet, which are in the lanes of their jobs and runs.

Workers deliver them. This module reads them for operators, and lets them be sent again.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.redis_client.each_lane import ask_at_once, first_wanted
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    CallbackEntry,
    CallbackState,
    DeliveryAttempt,
    OutboxMessage,
)

if TYPE_CHECKING:
    from redis.client import Pipeline

Answer = TypeVar("Answer")

_ANSWER_S: Final = 3.0
"""Seconds that all lanes together have for an answer."""
_LEFT_OUT: Final = "its callbacks are left out"


class LaneOutbox:
    """This class adds, reads and replays the callbacks of all lanes. Threads may share it.

    What is read of a lane that does not answer is left out, and the log names it.
    """

    def __init__(self, lanes: Lanes, retention_s: int) -> None:
        self._lanes = lanes
        self._parts = [Outbox(lane.client, lane.namespace, retention_s) for lane in lanes]

    def add(self, message: OutboxMessage, pipeline: "Pipeline | None" = None) -> None:
        """Add `message`, due now; within `pipeline`, which is one of the first lane, if one is
        given."""
        number = 0 if pipeline is not None else self._lanes.of(message.job_id).number
        self._parts[number].add(message, pipeline)

    def replay(self, message_id: str, *, job_id: str | None = None) -> None:
        """Put a given-up message back; see `Outbox.replay`.

        Args:
            job_id: the job, or what stands for it, whose lane has the message. None: any lane may.

        Raises:
            UnknownJob, MessageRejected: see `Outbox.replay`.
            BrokerUnavailable: no lane that answers has it, and others do not answer.
        """
        if job_id is not None:
            self._parts[self._lanes.of(job_id).number].replay(message_id)
            return

        def replay(part: Outbox) -> Exception | None:
            try:
                part.replay(message_id)
            except (UnknownJob, MessageRejected) as error:
                return error
            return None

        error = self._first_of(replay, lambda error: not isinstance(error, UnknownJob), message_id)
        if error is not None:
            raise error

    def make_due_now(self, message_id: str) -> bool:
        """Let a waiting message be due now. Return False if no waiting message has this id.

        Raises BrokerUnavailable: no lane that answers has it, and others do not answer.
        """
        return self._first_of(lambda part: part.make_due_now(message_id), bool, message_id)

    def discard_test(self, message: OutboxMessage) -> None:
        """Delete a test and the log of its delivery. A worker may still be sending it."""
        self._parts[self._lanes.of(message.job_id).number].discard_test(message)

    def enable(self, url: str) -> None:
        """Send to the receiver at `url` again, but from lanes that do not answer."""
        self._ask(lambda part: part.enable(url), f"the receiver {url} stays disabled there")

    def is_disabled(self, url: str) -> bool:
        """Return whether the receiver at `url` is disabled in a lane."""
        return any(self._ask(lambda part: part.is_disabled(url)))

    def attempts_of(self, job_id: str) -> list[DeliveryAttempt]:
        """Return the latest delivery attempts of a job's callbacks, newest first."""
        return list(chain.from_iterable(self._ask(lambda part: part.attempts_of(job_id))))

    def entries(self, *, failed: bool = False, limit: int = 100) -> list[CallbackEntry]:
        """Return the given-up callbacks, latest first, then the waiting ones, longest due first."""
        parts = self._ask(lambda part: part.entries(failed=failed, limit=limit))
        if len(self._parts) == 1:
            return parts[0]
        found = list(chain.from_iterable(parts))
        given_up = [each for each in found if each.standing is CallbackState.GIVEN_UP]
        waiting = [each for each in found if each.standing is not CallbackState.GIVEN_UP]
        given_up.sort(key=lambda entry: entry.at, reverse=True)
        waiting.sort(key=lambda entry: entry.at)
        return [*given_up, *waiting][:limit]

    def entries_of(self, job_id: str) -> list[CallbackEntry]:
        """Return a job's callbacks: given up, waiting, and delivered as far as its log goes."""
        return list(chain.from_iterable(self._ask(lambda part: part.entries_of(job_id))))

    def _ask(self, ask: Callable[[Outbox], Answer], otherwise: str = _LEFT_OUT) -> list[Answer]:
        asks = self._asks(ask)
        return list(ask_at_once(asks, len(asks), _ANSWER_S, otherwise).values())

    def _first_of(
        self, ask: Callable[[Outbox], Answer], is_wanted: Callable[[Answer], bool], message_id: str
    ) -> Answer:
        sought = f"callback {message_id}"
        return first_wanted(self._asks(ask), is_wanted, _ANSWER_S, _LEFT_OUT, sought)

    def _asks(self, ask: Callable[[Outbox], Answer]) -> dict[int, Callable[[], Answer]]:
        return {number: partial(ask, part) for number, part in enumerate(self._parts)}
