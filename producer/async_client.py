"""The same API for asyncio: each call runs the one in `producer.client` in a thread.

async with AsyncClient() as client:
    job = await client.submit("a red circle")
    result = await job.result(timeout=60)
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from imagefleet.producer.client import Client, Job, outcome, pauses
from imagefleet.shared.jobs.model import JobResult, JobStatus, State


class AsyncClient:
    """`Client` with `await`: the same arguments, methods and errors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._client = Client(*args, **kwargs)

    async def submit(self, prompt: str, **parameters: Any) -> "AsyncJob":
        job = await asyncio.to_thread(self._client.submit, prompt, **parameters)
        return self._wrap(job)

    async def submit_many(
        self, prompts: Iterable[str | Mapping[str, Any]], **parameters: Any
    ) -> list["AsyncJob"]:
        jobs = await asyncio.to_thread(self._client.submit_many, prompts, **parameters)
        return [self._wrap(job) for job in jobs]

    async def get(self, job_id: str) -> "AsyncJob":
        return self._wrap(await asyncio.to_thread(self._client.get, job_id))

    async def as_completed(
        self, jobs: Iterable["AsyncJob"], *, timeout: float | None = None
    ) -> AsyncIterator["AsyncJob"]:
        waiting = {job.id: job.job for job in jobs}
        for pause in pauses(waiting, timeout):
            # Only the look is in a thread: whoever stops waiting leaves none behind.
            for job in await asyncio.to_thread(lambda: list(self._client.ended(waiting))):
                yield self._wrap(job)
            if waiting:
                await asyncio.sleep(pause)

    async def map(
        self,
        prompts: Iterable[str | Mapping[str, Any]],
        *,
        timeout: float | None = None,
        **parameters: Any,
    ) -> AsyncIterator[JobResult]:
        for job in await self.submit_many(prompts, **parameters):
            yield await job.result(timeout=timeout)

    async def statuses(self, job_ids: Iterable[str]) -> list[JobStatus]:
        return await asyncio.to_thread(self._client.statuses, job_ids)

    async def cancel(self, job_id: str) -> State:
        return await asyncio.to_thread(self._client.cancel, job_id)

    async def workers(self) -> list[str]:
        return await asyncio.to_thread(self._client.workers)

    async def check(self) -> None:
        await asyncio.to_thread(self._client.check)

    def close(self) -> None:
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _wrap(self, job: Job) -> "AsyncJob":
        return AsyncJob(job=job, client=self)


@dataclass(frozen=True, kw_only=True)
class AsyncJob:
    """`Job` with `await`."""

    job: Job = field(repr=False)
    client: AsyncClient = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        return self.job.id

    async def status(self) -> JobStatus:
        return await asyncio.to_thread(self.job.status)

    async def result(self, timeout: float | None = None) -> JobResult:
        async for _ in self.client.as_completed([self], timeout=timeout):
            pass
        return outcome(await self.status())

    async def cancel(self) -> State:
        return await asyncio.to_thread(self.job.cancel)
