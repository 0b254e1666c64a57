"""The dead letters of a fleet: each is in the lane of the queue that its message came from."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs.dead_letters import DeadLetter, DeadLetters, letters_of
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.each_lane import ask_at_once, first_wanted
from imagefleet.shared.redis_client.lanes import Lanes

Answer = TypeVar("Answer")

_ANSWER_S: Final = 3.0
"""Seconds that all lanes together have for an answer."""
_LEFT_OUT: Final = "its dead letters are left out"


class LaneDeadLetters:
    """This class reads, redrives and drops the dead letters of all lanes. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._parts = {lane.namespace: DeadLetters(lane.client, lane.namespace) for lane in lanes}

    def read(self, limit: int | None = None) -> list[DeadLetter]:
        """Return up to `limit` letters, the latest first. None: all. Those of a lane that does not
        answer are left out, and the log names it; so do `ids` and `lookup`."""
        bound = {} if limit is None else {"limit": limit}
        parts = self._ask(lambda part: part.read(**bound))
        if len(self._parts) == 1:
            return parts[0]
        return sorted(chain(*parts), key=lambda letter: letter.at, reverse=True)[:limit]

    def ids(self) -> list[str]:
        """Return the ids of all letters, the latest first."""
        times = chain.from_iterable(self._ask(lambda part: part.times()))
        return [each for each, _ in sorted(times, key=lambda letter: letter[1], reverse=True)]

    def find(self, letter_id: str) -> DeadLetter | None:
        """Return the letter with this id; None if there is none, or it is damaged.

        Raises BrokerUnavailable: no lane that answers has it, and others do not answer.
        """
        asks = self._asks(lambda part: part.find(letter_id))
        sought = f"dead letter {letter_id}"
        return first_wanted(asks, lambda each: each is not None, _ANSWER_S, _LEFT_OUT, sought)

    def lookup(self, names: Iterable[str]) -> list[DeadLetter | UnknownJob]:
        """Return the letters with these ids or job ids; see `letters_of`."""
        return letters_of(self.read(), names)

    def redrive(self, letter: DeadLetter) -> State:
        """Send a letter through the fleet once more; see `DeadLetters.redrive`."""
        return self._part_of(letter).redrive(letter)

    def drop(self, letter: DeadLetter) -> None:
        """Delete a letter. Its job's record stays as it is."""
        self._part_of(letter).drop(letter)

    def _ask(self, ask: Callable[[DeadLetters], Answer]) -> list[Answer]:
        asks = self._asks(ask)
        return list(ask_at_once(asks, len(asks), _ANSWER_S, _LEFT_OUT).values())

    def _asks(self, ask: Callable[[DeadLetters], Answer]) -> dict[int, Callable[[], Answer]]:
        return {number: partial(ask, part) for number, part in enumerate(self._parts.values())}

    def _part_of(self, letter: DeadLetter) -> DeadLetters:
        """Return the letters of the lane that its queue is in, the first if that is no queue of the
        fleet."""
        first = next(iter(self._parts.values()))
        return self._parts.get(letter.list_key.partition(".")[0], first)
