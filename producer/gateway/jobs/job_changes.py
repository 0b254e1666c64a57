"""The changes of one job as one consumer sees them: an asynchronous iterator that keeps the newest.

Input: statuses and errors, from any thread. Output: statuses, in the event loop that made the
object. This module reads nothing from Redis.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from copy import copy
from typing import Self

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.status import JobStatus


class JobChanges:
    """The changes of a job: first its status as it is, then each newer one, until the job ends.

    A slow consumer gets the newest status only, so nothing piles up. One task iterates.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.since = time.monotonic()
        self.newest: JobStatus | None = None
        """What the record said last, whether or not the consumer has seen it."""
        self.closed = False
        """Whether no further status comes because the watcher was closed: the job goes on."""
        self._error: ImagefleetError | None = None
        self._unseen: deque[JobStatus] = deque(maxlen=1)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._is_waking = False

    def put(self, status: JobStatus) -> None:
        """Give the consumer a status, unless it is the one that it got last."""
        if status != self.newest:
            self._unseen.append(status)
            self.newest = status  # it may end the iteration, so the consumer must see it first
            self._wake()

    def fail(self, error: ImagefleetError) -> None:
        """End the iteration with an error, after the status that the consumer has not seen yet."""
        self._error = error
        self._wake()

    def close(self) -> None:
        """End the iteration before the job has ended."""
        self.closed = True
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobStatus:
        """Return the newest status that was not returned before; wait for one.

        Raises:
            UnknownJob: the job was never submitted, or is deleted.
            UnreadableRecord: its record is damaged, or of a newer release.
            BrokerUnavailable: Redis is away for longer than the watcher waits for it.
        """
        while not self._unseen:
            if self._error is not None:
                raise copy(self._error)  # several consumers have the same
            if self.closed or (self.newest is not None and self.newest.done):
                raise StopAsyncIteration
            await self._news.wait()
            self._news.clear()
        return self._unseen.popleft()

    def _wake(self) -> None:
        """Wake the consumer from another thread. At most one call waits in its event loop."""
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._is_waking = False
        self._news.set()
