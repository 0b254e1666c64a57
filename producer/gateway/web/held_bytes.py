"""Bound the memory that large bodies and answers take in one process at the same time.

A request takes as many bytes from the budget of the process as it is going to hold, before it
holds them, and gives them back afterwards. One event loop uses a budget.
"""

import asyncio
from collections import deque
from typing import Final

from starlette.requests import Request

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.metrics import HELD_BYTES

LARGE_BYTES: Final = 65_536
"""Bodies and answers up to this size are not counted: a connection has buffers of as much."""
_WAIT_S: Final = 2.0
"""Seconds that a request waits for bytes. Meanwhile its client is not read."""
_RETRY_S: Final = 1


class ByteBudget:
    """The bytes that all requests of a process may hold together."""

    def __init__(self, most: int, *, wait_s: float = _WAIT_S) -> None:
        """
        Args:
            wait_s: seconds that a request waits for bytes.
        """
        self._most = most
        self._wait_s = wait_s
        self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int, *, waits: bool) -> int:
        """Take bytes, in the order of the requests. Return how many were taken: who needs more than
        there are takes all of them, so that it is alone.

        Args:
            waits: whether to wait for them, for `wait_s` at most.

        Raises Problem (503).
        """
        count = min(count, self._most)
        if not self._waiting and count <= self._free:
            self._change(-count)
        elif waits:
            await self._wait(count)
        else:
            raise self._used_up()
        return count

    def give_back(self, count: int) -> None:
        """Give back bytes that were taken."""
        self._change(count)
        self._grant()

    async def _wait(self, count: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        place = (count, granted)
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await granted
        except BaseException as error:
            if place in self._waiting:
                self._waiting.remove(place)
                self._grant()
            else:  # they were granted in this moment
                self.give_back(count)
            if isinstance(error, TimeoutError):
                raise self._used_up() from None
            raise

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            count, granted = self._waiting.popleft()
            self._change(-count)
            if not granted.done():
                granted.set_result(None)

    def _change(self, count: int) -> None:
        self._free += count
        HELD_BYTES.set(self._most - self._free)

    def _used_up(self) -> Problem:
        message = (
            f"other requests hold the {self._most:,} bytes that this gateway has for large bodies "
            "and answers; ask again, or another gateway"
        )
        return Problem(503, "too_many_bytes", message, retry_after_s=_RETRY_S)


class HeldBytes:
    """The bytes that one request has taken from the budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._count = 0

    @property
    def count(self) -> int:
        """Return how many bytes the request has taken; 0 if it is small."""
        return self._count

    async def take(self, count: int) -> None:
        """Take more bytes. A request that has none waits for them; one that has some does not, so
        that no two wait for each other. Raises Problem (503)."""
        self._count += await self._budget.take(count, waits=self._count == 0)

    async def take_for_answer(self, count: int) -> None:
        """Take bytes for an answer, unless they are few; see `take`."""
        if count > LARGE_BYTES:
            await self.take(count)

    def release(self) -> None:
        """Give all of them back: what they were taken for is held no more."""
        count, self._count = self._count, 0
        if count:
            self._budget.give_back(count)


def held_bytes(request: Request) -> HeldBytes:
    """Return what a request has taken. It is given back at the end of the request at the latest."""
    held: HeldBytes = request.state.held_bytes
    return held
