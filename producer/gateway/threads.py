"""Run calls that block in a bounded number of threads: those to a store in others than those to
Redis.

A request that waits for a job uses none of them; see `gateway.jobs.watch`.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from imagefleet.shared.errors import BrokerUnavailable

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most so many calls run at the same time; others wait in their order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Return what the function returns, and raise what it raises."""
        if self._limiter is None:  # it belongs to the event loop that runs now
            self._limiter = anyio.CapacityLimiter(self._count)
        return await anyio.to_thread.run_sync(function, *args, limiter=self._limiter)

    async def each(self, items: Iterator[T]) -> AsyncIterator[T]:
        """Yield what an iterator yields, which is no None. It blocks a thread, one at a time."""
        while (item := await self.run(next, items, None)) is not None:
            yield item

    async def repeat(self, function: Callable[[], object], pause_s: float, without: str) -> None:
        """Run a call again and again, until the task is cancelled.

        Args:
            without: what it means if the call fails, for the log.
        """
        while True:
            await anyio.sleep(pause_s)
            try:
                await self.run(function)
            except BrokerUnavailable as error:
                log.warning("%s while Redis is away: %s", without, error)
            except Exception:  # of any kind: later calls may succeed
                log.exception("%s", without)
