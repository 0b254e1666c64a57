"""Search the due messages of the outbox for some that can be sent now.

Input: a call of `outbox_claim.lua`, which looks at some of them. Output: what it claimed. The
search looks at those that are due longest, then at those that came last, then at the others. So
messages that have to wait hide no others, however many they are.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Look: TypeAlias = Callable[[str | int], Any]
"""Calls the script with how many messages to pass over, counted from the one that came last. Empty:
it looks at those that are due longest."""

_MAX_LOOKS: Final = 50
"""Looks at the others in `every_s`. One takes Redis about a millisecond."""


class OutboxSearch:
    """The search of one worker. One thread calls it."""

    def __init__(self) -> None:
        self._passed = 0
        """Messages to pass over, because the search has looked at them already."""
        self._looks_left = 0
        self._renewed_at = -math.inf

    def run(self, look: Look, every_s: float) -> tuple[list[str], list[str]]:
        """Look until something is claimed, all due messages were looked at, or too much was looked
        at within `every_s`. Return what was claimed, and the messages to give up."""
        claimed, overdue, kept = look("")
        looks = offset = 0
        while not (claimed or overdue) and kept >= 0 and self._may_look_again(looks, every_s):
            claimed, overdue, kept = look(offset)
            looks += 1
            if kept < 0:
                self._passed = 0
            elif not claimed:
                offset = max(offset + kept, self._passed)
                self._passed = offset
        return claimed, overdue

    def _may_look_again(self, looks: int, every_s: float) -> bool:
        if looks in (0, _MAX_LOOKS):
            return looks == 0
        now = time.monotonic()
        if now >= self._renewed_at + every_s:
            self._looks_left, self._renewed_at = _MAX_LOOKS, now
        self._looks_left -= 1
        return self._looks_left >= 0
