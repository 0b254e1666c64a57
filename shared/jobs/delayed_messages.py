"""Requeue the delayed messages that are due, the longest due first.

They become many at once if a producer gives very many messages the same time.
"""

import math
import time
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.jobs.redis_keys import delayed_key
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_MAX_PER_CALL: Final = 100
"""Messages that one call of the script requeues. Redis serves no other client meanwhile."""
_OLDEST: Final = 1_000
"""Messages that are requeued together, in the order in which they were due. Later ones go before
them in their queues, if this many are due."""


class DelayedMessages:
    """The delayed messages of one namespace. Threads may share this object."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._keys = [delayed_key(namespace)]
        self._script = load_script(client, __package__, "requeue_due")

    def requeue_due(self, time_limit_s: float = math.inf) -> int:
        """Requeue the messages that are due. Return how many there were.

        After `time_limit_s` no further 1,000 are begun. Those that are due longest go first; the
        next call goes on with the others.
        """
        deadline = time.monotonic() + time_limit_s
        total, requeued = 0, _OLDEST
        while requeued == _OLDEST and (total == 0 or time.monotonic() < deadline):
            requeued = self._requeue_oldest()
            total += requeued
        return total

    def _requeue_oldest(self) -> int:
        """Requeue the 1,000 messages that are due longest. Return how many there were.

        The script pushes messages to the heads of their queues, so the oldest go last.
        """
        total = 0
        for window in range(_OLDEST, 0, -_MAX_PER_CALL):
            requeued = cast(int, self._script(keys=self._keys, args=[_MAX_PER_CALL, window]))
            total += requeued
            if requeued < _MAX_PER_CALL:
                break
        return total
