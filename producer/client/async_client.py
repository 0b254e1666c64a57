"""The same API for asyncio: each call runs the method of `producer.client.client` in a thread.

async with AsyncClient() as client:
    job = await client.submit("a red circle")
    result = await job.result(timeout=60)
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job, Polling, result_or_raise
from imagefleet.producer.client.job_filter import JobFilter
from imagefleet.producer.client.parameters import JobParameters
from imagefleet.producer.connection.outages import RETRY_S, OutageTolerance
from imagefleet.shared.errors import ImagefleetError, UnknownJob, UnreadableRecord
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.settings.settings import Settings

if TYPE_CHECKING:  # few producers make datasets; the others do not pay for this import
    from pathlib import Path

    from redis import Redis

    from imagefleet.producer.bulk.async_run import AsyncBulkRun
    from imagefleet.producer.bulk.dry_run import DryRun
    from imagefleet.producer.bulk.inputs import Rows


class AsyncClient:
    """`AsyncClient` is `Client` with `await`: the same methods and errors."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        namespace: str | None = None,
        tenant: str | None = None,
        storage_url: str | None = None,
        settings: Settings | None = None,
        redis: "Redis | None" = None,
    ) -> None:
        """Take the arguments of `Client`. `redis` is not an asynchronous one."""
        self._client = Client(
            redis_url,
            namespace=namespace,
            tenant=tenant,
            storage_url=storage_url,
            settings=settings,
            redis=redis,
        )

    async def submit(
        self, prompt: str, *, id: str | None = None, **parameters: Unpack[JobParameters]
    ) -> "AsyncJob":
        """See `Client.submit`."""
        job = await asyncio.to_thread(self._client.submit, prompt, id=id, **parameters)
        return self._wrap(job)

    async def submit_many(
        self, prompts: Iterable[str | Mapping[str, object]], **parameters: Unpack[JobParameters]
    ) -> list["AsyncJob"]:
        """See `Client.submit_many`."""
        jobs = await asyncio.to_thread(self._client.submit_many, prompts, **parameters)
        return [self._wrap(job) for job in jobs]

    async def get(self, job_id: str) -> "AsyncJob":
        """See `Client.get`."""
        return self._wrap(await asyncio.to_thread(self._client.get, job_id))

    async def as_completed(
        self, jobs: Iterable["AsyncJob"], *, timeout: float | None = None
    ) -> AsyncIterator["AsyncJob"]:
        """See `Client.as_completed`."""
        waiting = {job.id: job.job for job in jobs}
        async for job in self.await_jobs(waiting, Polling(waiting, timeout)):
            yield job

    async def await_jobs(
        self, waiting: dict[str, Job], polls: Polling
    ) -> AsyncIterator["AsyncJob"]:
        """See `Client.await_jobs`."""

        def poll() -> list[Job]:
            return self._client.pop_ended(waiting, warn=not polls.outages.answered)

        for interval in polls.intervals():
            # Only the poll runs in a thread, so a cancelled wait leaves no thread behind.
            for job in await asyncio.to_thread(polls.outages.read, poll) or ():
                yield self._wrap(job)
            if waiting:
                await asyncio.sleep(interval)

    @overload
    def map(
        self,
        prompts: Iterable[str | Mapping[str, object]],
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
        **parameters: Unpack[JobParameters],
    ) -> AsyncIterator[JobResult]: ...

    @overload
    def map(
        self,
        prompts: Iterable[str | Mapping[str, object]],
        *,
        timeout: float | None = None,
        return_exceptions: bool,
        **parameters: Unpack[JobParameters],
    ) -> AsyncIterator[JobResult | ImagefleetError]: ...

    async def map(
        self,
        prompts: Iterable[str | Mapping[str, object]],
        *,
        timeout: float | None = None,
        return_exceptions: bool = False,
        **parameters: Unpack[JobParameters],
    ) -> AsyncIterator[Any]:
        """See `Client.map`."""
        outages = OutageTolerance()
        for job in await self.submit_many(prompts, **parameters):
            try:
                outcome: JobResult | ImagefleetError = await job.await_result(timeout, outages)
            except ImagefleetError as error:
                if not return_exceptions:
                    raise
                outcome = error
            yield outcome

    async def statuses(self, job_ids: Iterable[str]) -> list[JobStatus]:
        """See `Client.statuses`."""
        return await asyncio.to_thread(self._client.statuses, job_ids)

    async def lookup(
        self, job_ids: Iterable[str]
    ) -> list[JobStatus | UnknownJob | UnreadableRecord]:
        """See `Client.lookup`."""
        return await asyncio.to_thread(self._client.lookup, job_ids)

    async def jobs(
        self,
        *,
        state: State | str | None = None,
        tenant: str | None = None,
        since: datetime | float | None = None,
    ) -> AsyncIterator[JobStatus]:
        """See `Client.jobs`."""
        pages = self._client.job_pages(JobFilter.parse(state, tenant, since))
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for status in page:
                yield status

    async def cancel(self, job_id: str) -> State:
        """See `Client.cancel`."""
        return await asyncio.to_thread(self._client.cancel, job_id)

    async def delete(self, job_id: str) -> None:
        """See `Client.delete`."""
        await asyncio.to_thread(self._client.delete, job_id)

    async def resend(self, job_id: str) -> bool:
        """See `Client.resend`."""
        return await asyncio.to_thread(self._client.resend, job_id)

    async def offers(self) -> dict[str, Offer]:
        """See `Client.offers`."""
        return await asyncio.to_thread(self._client.offers)

    async def workers(self) -> list[str]:
        """See `Client.workers`."""
        return await asyncio.to_thread(self._client.workers)

    async def bulk(self, rows: "Rows", destination: "str | Path", **options: Any) -> "AsyncBulkRun":
        """See `Client.bulk`. If this is cancelled, its thread goes on until the run has started."""
        from imagefleet.producer.bulk.async_run import AsyncBulkRun

        run = await asyncio.to_thread(self._client.bulk, rows, destination, **options)
        return AsyncBulkRun(run=run)

    async def find_bulk(self, name: str) -> "AsyncBulkRun":
        """See `Client.find_bulk`."""
        from imagefleet.producer.bulk.async_run import AsyncBulkRun

        return AsyncBulkRun(run=await asyncio.to_thread(self._client.find_bulk, name))

    async def dry_run_bulk(
        self, rows: "Rows", destination: "str | Path", **options: Any
    ) -> "DryRun":
        """See `Client.dry_run_bulk`."""
        return await asyncio.to_thread(self._client.dry_run_bulk, rows, destination, **options)

    async def check(self) -> None:
        """See `Client.check`."""
        await asyncio.to_thread(self._client.check)

    def close(self) -> None:
        """See `Client.close`."""
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _wrap(self, job: Job) -> "AsyncJob":
        return AsyncJob(job=job, client=self)


@dataclass(frozen=True, kw_only=True)
class AsyncJob:
    """`AsyncJob` is `Job` with `await`."""

    job: Job
    client: AsyncClient = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        return self.job.id

    async def status(self) -> JobStatus:
        """See `Job.status`."""
        return await asyncio.to_thread(self.job.status)

    async def result(self, timeout: float | None = None) -> JobResult:
        """See `Job.result`."""
        return await self.await_result(timeout, OutageTolerance())

    async def await_result(self, timeout: float | None, outages: OutageTolerance) -> JobResult:
        """See `Job.await_result`."""
        waiting = {self.id: self.job}
        async for _ in self.client.await_jobs(waiting, Polling(waiting, timeout, outages)):
            pass
        while (status := await asyncio.to_thread(outages.read, self.job.status)) is None:
            await asyncio.sleep(RETRY_S)
        return result_or_raise(status)

    async def cancel(self) -> State:
        """See `Job.cancel`."""
        return await asyncio.to_thread(self.job.cancel)

    async def delete(self) -> None:
        """See `Job.delete`."""
        await asyncio.to_thread(self.job.delete)
