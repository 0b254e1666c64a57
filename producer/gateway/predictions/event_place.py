"""Order the events of a prediction by what its record says, so that no gateway keeps a history.

An event's id is its place. Whoever asks for the events after an id, at whichever gateway, gets
those that the record tells now and that lie behind it. Steps that passed meanwhile are left out, as
for a client that reads slowly.
"""

import re
from typing import Final, NamedTuple, Self

_TEXT: Final = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,3})")
_QUEUED_STEP: Final = 10**9
_ENDED: Final = 10**9


class EventPlace(NamedTuple):
    """An event has this place. Places are compared part by part."""

    deliveries: int
    """How often a worker had taken the job."""
    step: int
    part: int = 0
    """Events of one step have different parts."""

    @classmethod
    def queued(cls, deliveries: int) -> Self:
        """Return the place of a job that waits after so many deliveries."""
        return cls(deliveries, _QUEUED_STEP)

    @classmethod
    def ended(cls, number: int) -> Self:
        """Return the place of an event after the end of the job, counted from 0."""
        return cls(_ENDED, number)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the place in a `Last-Event-ID`; for any other text that before all events."""
        found = _TEXT.fullmatch(text or "")
        return cls(*map(int, found.groups())) if found else cls(0, 0)

    def __str__(self) -> str:
        return f"{self.deliveries}.{self.step}.{self.part}"
