"""Forget empty queues, and drop waiting messages whose job has ended, where no worker claims.

Anybody can invent queues of models that nobody serves, and cancel what waits in them.
"""

from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.jobs.redis_keys import (
    deliveries_key,
    job_key,
    known_queues_key,
    sweep_cursor_key,
)
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_MAX_QUEUES_SWEPT: Final = 128
_MAX_MESSAGES_SWEPT: Final = 256
"""Queues and messages that one call of the script looks at, also because of the other clients."""


class QueueSweeper:
    """The sweeper looks at some of the known queues of one namespace at each call."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._namespace = namespace
        self._script = load_script(client, __package__, "sweep_queues")

    def sweep(self) -> tuple[int, int]:
        """Forget some of the known queues that are empty, and drop waiting messages whose job has
        ended. Return how many of both.

        A claim does the same for the queues that it reads. The next call, of any worker, looks at
        other queues.
        """
        namespace = self._namespace
        forgotten, dropped = cast(
            tuple[int, int],
            self._script(
                keys=[
                    known_queues_key(namespace),
                    deliveries_key(namespace),
                    sweep_cursor_key(namespace),
                ],
                args=[job_key(namespace, ""), _MAX_QUEUES_SWEPT, _MAX_MESSAGES_SWEPT],
            ),
        )
        return forgotten, dropped
