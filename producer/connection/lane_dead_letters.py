"""The dead letters of a fleet: each is in the lane of the queue that its message came from."""

from collections.abc import Iterable
from itertools import chain

from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs.dead_letters import DeadLetter, DeadLetters, letters_of
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.lanes import Lanes


class LaneDeadLetters:
    """This class reads, redrives and drops the dead letters of all lanes. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._parts = {lane.namespace: DeadLetters(lane.client, lane.namespace) for lane in lanes}

    def read(self, limit: int | None = None) -> list[DeadLetter]:
        """Return up to `limit` letters, the latest first. None: all."""
        bound = {} if limit is None else {"limit": limit}
        parts = [part.read(**bound) for part in self._parts.values()]
        if len(parts) == 1:
            return parts[0]
        return sorted(chain(*parts), key=lambda letter: letter.at, reverse=True)[:limit]

    def ids(self) -> list[str]:
        """Return the ids of all letters, the latest first."""
        times = chain.from_iterable(part.times() for part in self._parts.values())
        return [each for each, _ in sorted(times, key=lambda letter: letter[1], reverse=True)]

    def find(self, letter_id: str) -> DeadLetter | None:
        """Return the letter with this id; None if there is none, or it is damaged."""
        found = (part.find(letter_id) for part in self._parts.values())
        return next((letter for letter in found if letter is not None), None)

    def lookup(self, names: Iterable[str]) -> list[DeadLetter | UnknownJob]:
        """Return the letters with these ids or job ids; see `letters_of`."""
        return letters_of(self.read(), names)

    def redrive(self, letter: DeadLetter) -> State:
        """Send a letter through the fleet once more; see `DeadLetters.redrive`."""
        return self._part_of(letter).redrive(letter)

    def drop(self, letter: DeadLetter) -> None:
        """Delete a letter. Its job's record stays as it is."""
        self._part_of(letter).drop(letter)

    def _part_of(self, letter: DeadLetter) -> DeadLetters:
        """Return the letters of the lane that its queue is in, the first if that is no queue of the
        fleet."""
        first = next(iter(self._parts.values()))
        return self._parts.get(letter.list_key.partition(".")[0], first)
