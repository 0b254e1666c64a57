"""The handle of a bulk run for asyncio: each call runs the method of `BulkRun` in a thread."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from imagefleet.producer.bulk.run import POLL_S, BulkRun, last_or_raise
from imagefleet.producer.bulk.verify_report import VerifyReport
from imagefleet.producer.connection.outages import deadline_of
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.jobs.model import State


@dataclass(frozen=True, kw_only=True)
class AsyncBulkRun:
    """`AsyncBulkRun` is `BulkRun` with `await`."""

    run: BulkRun

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def destination(self) -> str:
        return self.run.destination

    @property
    def plan(self) -> Plan:
        return self.run.plan

    async def status(self) -> RunStatus:
        """See `BulkRun.status`."""
        return await asyncio.to_thread(self.run.status)

    async def statuses(
        self, every_s: float = POLL_S, *, deadline: float = float("inf")
    ) -> AsyncIterator[RunStatus]:
        """See `BulkRun.statuses`."""
        polls = self.run.polls(every_s, deadline=deadline)
        # Only the poll runs in a thread, so a cancelled wait leaves no thread behind.
        while (poll := await asyncio.to_thread(next, polls, None)) is not None:
            status, pause_s = poll
            yield status
            await asyncio.sleep(pause_s)

    async def wait(self, timeout: float | None = None) -> RunStatus:
        """See `BulkRun.wait`."""
        deadline = deadline_of(timeout)
        last = await self.status()
        async for status in self.statuses(deadline=deadline):
            last = status
        return last_or_raise(last, timeout)

    async def cancel(self) -> State:
        """See `BulkRun.cancel`."""
        return await asyncio.to_thread(self.run.cancel)

    async def verify(self, *, sample: int = 0) -> VerifyReport:
        """See `BulkRun.verify`."""
        return await asyncio.to_thread(self.run.verify, sample=sample)

    async def repair(self, report: VerifyReport) -> int:
        """See `BulkRun.repair`."""
        return await asyncio.to_thread(self.run.repair, report)

    async def retry_failed(self) -> int:
        """See `BulkRun.retry_failed`."""
        return await asyncio.to_thread(self.run.retry_failed)

    async def rejected(self) -> list[dict[str, object]]:
        """See `BulkRun.rejected`."""
        return await asyncio.to_thread(lambda: list(self.run.rejected()))

    async def failures(self) -> list[RowFailure]:
        """See `BulkRun.failures`."""
        return await asyncio.to_thread(lambda: list(self.run.failures()))
