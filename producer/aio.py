"""The same API for asyncio: each call runs the one in `producer.client` in a thread.

async with AsyncClient() as client:
    job = await client.submit("a red circle")
    result = await job.result(timeout=60)
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from producer.client import Client, Job
from shared.jobs import JobResult, JobStatus, State


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
        ended = self._client.as_completed([job.job for job in jobs], timeout=timeout)
        while (job := await asyncio.to_thread(next, ended, None)) is not None:
            yield self._wrap(job)

    async def map(
        self, prompts: Iterable[str | Mapping[str, Any]], **parameters: Any
    ) -> AsyncIterator[JobResult]:
        results = self._client.map(prompts, **parameters)
        while (result := await asyncio.to_thread(next, results, None)) is not None:
            yield result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    def _wrap(self, job: Job) -> "AsyncJob":
        return AsyncJob(job=job)


@dataclass(frozen=True, kw_only=True)
class AsyncJob:
    """`Job` with `await`."""

    job: Job = field(repr=False)

    @property
    def id(self) -> str:
        return self.job.id

    async def status(self) -> JobStatus:
        return await asyncio.to_thread(self.job.status)

    async def result(self, timeout: float | None = None) -> JobResult:
        return await asyncio.to_thread(self.job.result, timeout)

    async def cancel(self) -> State:
        return await asyncio.to_thread(self.job.cancel)
