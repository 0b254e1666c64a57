"""Run calls that block in a bounded number of threads, for a bounded time: those to a store in
others than those to Redis.

A request that waits for a job uses none of them; see `gateway.jobs.watch`.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import anyio

from imagefleet.shared.errors import BrokerUnavailable, ImagefleetError, StorageUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


class Threads:
    """At most so many calls run at the same time; others wait in their order.

    Nobody can end a call whose server hangs. Who waits for it is answered in time, and its thread
    is busy until the call ends by itself, so a server that hangs takes these threads and no more.
    """

    def __init__(
        self,
        count: int,
        *,
        within_s: float | None = None,
        begins_within_s: float | None = None,
        late: type[ImagefleetError] = BrokerUnavailable,
        whose: str = "Redis",
    ) -> None:
        """
        Args:
            within_s: seconds for which a caller waits, first for a thread, then for its answer.
                None: as long as it takes.
            begins_within_s: seconds for which a call waits for a thread. Who waited longer can ask
                again: the call will never run. None: as long as it takes.
            late: the error for a call that took longer.
            whose: names what the calls wait for.
        """
        self._count: Final = count
        self._within_s: Final = within_s
        self._begins_within_s: Final = begins_within_s
        self._late: Final = late
        self._whose: Final = whose
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Return what the function returns, and raise what it raises, or that it is late."""
        call: Future[T] = Future()
        self._calls.put((call, partial(contextvars.copy_context().run, function, *args)))
        if not self._idle.acquire(blocking=False) and self._started < self._count:
            self._started += 1
            threading.Thread(target=self._work, name="imagefleet-call", daemon=True).start()
        try:
            async with asyncio.timeout(self._within_s) as limit:
                with anyio.CancelScope(shield=True):  # the call may use what its caller would close
                    answer = await self._answer_of(call)
        except TimeoutError:
            if limit.expired():
                within = f"did not answer within {self._within_s:g} s"
                raise self._late(
                    f"{self._whose} {within}: it hangs, or this gateway has too much to do"
                ) from None
            raise
        return answer

    async def _answer_of(self, call: Future[T]) -> T:
        """Await a call, unless no thread begins with it in time."""
        if self._begins_within_s is None:
            return await asyncio.wrap_future(call)
        was_given_up = False

        def give_up() -> None:
            nonlocal was_given_up
            was_given_up = call.cancel()  # False if it runs

        timer = asyncio.get_running_loop().call_later(self._begins_within_s, give_up)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not was_given_up:
                raise
            raise self._late(
                f"this gateway has too much to do: no thread for {self._whose} was free within "
                f"{self._begins_within_s:g} s"
            ) from None
        finally:
            timer.cancel()

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

    def _work(self) -> None:
        while True:
            _answer(*self._calls.get())
            self._idle.release()


def store_threads(count: int, within_s: float) -> Threads:
    """Return threads for calls to a store, which raise StorageUnavailable if they take longer."""
    return Threads(count, within_s=within_s, late=StorageUnavailable, whose="the store of images")


def upload_threads(count: int, begins_within_s: float) -> Threads:
    """Return threads for calls to a store that may take as long as they need, once they run. Those
    that no thread begins in time raise StorageUnavailable."""
    return Threads(
        count,
        begins_within_s=begins_within_s,
        late=StorageUnavailable,
        whose="the store of images",
    )


def _answer(call: Future[Any], function: Callable[[], Any]) -> None:
    """Let a future have what a function returns or raises, unless nobody waits for it any more."""
    if not call.set_running_or_notify_cancel():
        return
    try:
        call.set_result(function())
    except BaseException as error:
        call.set_exception(error)
