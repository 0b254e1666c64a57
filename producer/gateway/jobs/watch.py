"""Watch very many jobs from one process, those of each lane by a watcher of their own.

So a lane that does not answer delays no change of another. A fleet on one server has one lane.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.connection.outages import GRACE_S, deadline_of
from imagefleet.producer.gateway.jobs.job_changes import JobChanges
from imagefleet.producer.gateway.jobs.lane_watcher import LaneWatcher
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.status import JobStatus

_CLOSE_S: Final = 1.0
"""Seconds in which the threads may end when the watcher is closed. They end later if Redis
hangs."""


class JobWatcher:
    """The watcher of one process. Each lane has a thread from its first watch on.

    Waiting costs no thread and no connection. Event loops in several threads may share it.
    """

    def __init__(self, connection: Connection, **options: float) -> None:
        """Take the options of `LaneWatcher`."""
        self._lanes = connection.lanes
        self._closed = False
        self._parts = [LaneWatcher(connection, lane, **options) for lane in self._lanes]

    def watched(self) -> int:
        """Return how many jobs are watched now."""
        return sum(part.watched() for part in self._parts)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[JobChanges]:
        """Watch a job: `async with watcher.watch(job_id) as changes: async for status in changes`.

        The first status is the current one, the last is that of a terminal state. If the watcher is
        closed before, the iteration ends with `changes.closed`. `JobChanges.__anext__` lists the
        errors.
        """
        changes, part = JobChanges(job_id), self._parts[self._lanes.of(job_id).number]
        part.join(changes)
        try:
            yield changes
        finally:
            part.leave(changes)

    async def wait(self, job_ids: Sequence[str], timeout: float | None = None) -> list[JobStatus]:
        """Wait until these jobs have ended, for `timeout` seconds at most. Return what the records
        said last, in the order of the ids: at the timeout, or if the watcher is closed, some jobs
        have not ended.

        Raises:
            UnknownJob, UnreadableRecord: of one of the jobs.
            BrokerUnavailable: Redis is away for longer than the watcher waits for it, or gave no
                first answer by the timeout.
            InvalidRequest: the timeout is not a number.
        """
        deadline_of(timeout)
        async with AsyncExitStack() as stack:
            watches = {
                job_id: await stack.enter_async_context(self.watch(job_id))
                for job_id in dict.fromkeys(job_ids)
            }
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    for changes in watches.values():
                        await anext(changes, None)  # an unknown job is an error at once
                    for changes in watches.values():
                        async for _ in changes:
                            pass
            statuses = {job_id: await _known(changes) for job_id, changes in watches.items()}
        return [statuses[job_id] for job_id in job_ids]

    def close(self) -> None:
        """End all watches, and the subscriptions. It takes a second at most."""
        self._closed = True
        deadline = time.monotonic() + _CLOSE_S
        for part in self._parts:
            part.close(0.0)
        for part in self._parts:
            part.close(max(0.0, deadline - time.monotonic()))

    @property
    def is_closed(self) -> bool:
        """Return whether the gateway ends, or has ended."""
        return self._closed


async def _known(changes: JobChanges) -> JobStatus:
    """Return what the record of a job said last. Wait a little longer for the first answer.

    Raises:
        BrokerUnavailable: there was none.
    """
    if changes.newest is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await anext(changes, None)
    if changes.newest is None:
        raise BrokerUnavailable("Redis did not answer before the timeout of the wait")
    return changes.newest
