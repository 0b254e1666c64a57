"""Submit, read, await and cancel jobs as one caller may.

To a caller the jobs of other tenants do not exist: the answer is the same as for an id that nobody
ever used. Nothing here depends on a web framework.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from imagefleet.producer.client.client import Client
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.jobs.caller_images import CallerImages
from imagefleet.producer.gateway.jobs.job_changes import JobChanges
from imagefleet.producer.gateway.jobs.job_ids import shown_id, stored_id
from imagefleet.producer.gateway.jobs.tenant_index import TenantIndex
from imagefleet.producer.gateway.jobs.watch import JobWatcher
from imagefleet.producer.gateway.problems import Problem, stopping, unknown, wrong_field
from imagefleet.producer.gateway.threads import Threads
from imagefleet.shared.errors import (
    BrokerUnavailable,
    ImagefleetError,
    InvalidRequest,
    UnknownJob,
    UnreadableRecord,
)
from imagefleet.shared.jobs.model import JOB_ID, State
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.queues import lists_of
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types

_LOOK_S: Final = 10.0
"""Seconds between two looks whether a worker is alive."""


class TenantJobs:
    """This class shows each caller of a gateway its jobs, by the ids that callers know; see
    `job_ids`."""

    def __init__(
        self,
        client: Client,
        watcher: JobWatcher,
        threads: Threads,
        uploads: Threads,
        inputs: CallerImages,
        quota: ImageQuota,
        index: TenantIndex,
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._threads = threads
        self._uploads = uploads
        self._inputs = inputs
        self._quota = quota
        self._index = index
        self._next_look = 0.0

    async def submit(
        self, caller: Caller, parameters: Mapping[str, Any], *, name: str | None = None
    ) -> str:
        """Submit one job and return its id.

        Args:
            parameters: those of a job, in diffusers' names. `image` and `mask_image` may be bytes.
            name: the caller's own id; the same one with the same parameters is the same job.

        Raises:
            Problem: a parameter is not allowed to this caller, or its quota is used up.
            ImagefleetError: see `Client.submit`.
        """
        given = _allowed(caller, parameters)
        has_images = any(name in given for name in INPUT_FIELDS)
        threads = self._uploads if has_images else self._threads
        given = await threads.run(self._inputs.resolve, caller, given)
        name = self.new_name(caller) if name is None else name
        job_id = stored_id(caller.tenant, name)
        try:
            await threads.run(self._submit_listed, caller, given, name, job_id)
        except InvalidRequest as error:
            if error.field != "id":
                raise
            raise _in_use(name) from None
        return name

    def new_name(self, caller: Caller) -> str:
        """Return an id for a new job; see `LaneRecords.id_source`."""
        return self._client.connection.records.id_source(partial(stored_id, caller.tenant))()

    def _submit_listed(
        self, caller: Caller, parameters: dict[str, Any], name: str, job_id: str
    ) -> None:
        """Note a job in the list of its tenant, and submit it. If the gateway dies meanwhile, the
        job is listed or was not accepted."""
        is_new = self._index.add(caller.tenant, name)
        try:
            self._submit(caller, parameters, job_id)
        except BrokerUnavailable:  # it may be accepted all the same
            raise
        except (Problem, ImagefleetError):
            if is_new:
                with suppress(BrokerUnavailable):
                    self._index.remove_refused(caller.tenant, name)
            raise
        if not is_new:  # an equal request may have been refused meanwhile, for its quota
            self._index.add(caller.tenant, name)

    def _submit(self, caller: Caller, parameters: dict[str, Any], job_id: str) -> None:
        """Charge the images of a new job, and submit it. A repeated one is not charged again."""
        images = self._count_new_images(caller, parameters, job_id)
        charge = self._quota.charge(caller, images, job_id)
        if not charge.allowed:
            message = (
                f"{caller} may order {caller.images_per_day} images a day; {charge.left} are left"
            )
            raise Problem(429, "quota_used", message, retry_after_s=charge.resets_in_s)
        entry = {"prompt": None, **parameters, "id": job_id}
        try:
            next(self._client.submit_in_parts([entry], {}, several=False))
        except BrokerUnavailable:  # it may be accepted all the same
            raise
        except ImagefleetError:
            self._quota.give_back(charge, job_id)
            raise
        self._quota.confirm(charge)

    def _count_new_images(self, caller: Caller, parameters: Mapping[str, Any], job_id: str) -> int:
        """Return how many images are charged: none without a quota, and none for a job that is
        there already."""
        if caller.images_per_day is None:
            return 0
        is_new = self._client.connection.read_statuses([job_id]) == [None]
        return _count_images(parameters) if is_new else 0

    async def status(self, caller: Caller, name: str) -> JobStatus:
        """Return the status of a job. Raises Problem (404), UnreadableRecord, BrokerUnavailable."""
        return (await self.statuses(caller, [name]))[0]

    async def statuses(self, caller: Caller, names: Sequence[str]) -> list[JobStatus]:
        """Return the statuses of jobs, in this order. Raises Problem (404), UnreadableRecord."""
        return [await self._find(caller, name) for name in names]

    async def find_each(self, caller: Caller, names: Sequence[str]) -> list[JobStatus | None]:
        """Return the statuses of jobs with ids of the caller's own, in one round trip. None stands
        for a job without a record, or with one that cannot be read.

        Raises BrokerUnavailable.
        """
        if not names:
            return []
        ids = [stored_id(caller.tenant, name) for name in names]
        answers = await self._threads.run(self._client.connection.read_statuses, ids)
        return [
            answer if isinstance(answer, JobStatus) and owns(caller, answer) else None
            for answer in answers
        ]

    async def stored_status(self, job_id: str) -> JobStatus:
        """Return the status of any job by its stored id. Raises Problem (404), UnreadableRecord."""
        [answer] = await self._threads.run(self._client.connection.read_statuses, [job_id])
        if answer is None:
            raise unknown("job", job_id)
        if isinstance(answer, UnreadableRecord):
            raise answer
        return answer

    async def _find(self, caller: Caller, name: str) -> JobStatus:
        if not JOB_ID.fullmatch(name):
            raise unknown("job", name)
        own = stored_id(caller.tenant, name)
        ids = list(dict.fromkeys([own, name]))  # the second: of the tenant's Python programs
        answers = await self._threads.run(self._client.connection.read_statuses, ids)
        for job_id, answer in zip(ids, answers, strict=True):
            if isinstance(answer, JobStatus) and owns(caller, answer):
                return answer
            if isinstance(answer, UnreadableRecord) and job_id == own:
                raise answer
        raise unknown("job", name)

    async def queue_length(self, status: JobStatus) -> int:
        """Return how many jobs wait in the lists of a queued job, itself included: its place is at
        most this. Raises BrokerUnavailable."""
        return await self._threads.run(self._queue_length, status)

    def _queue_length(self, status: JobStatus) -> int:
        connection = self._client.connection
        lane = connection.lanes.of(status.id)
        with connection.translate_errors(), lane.client.pipeline(transaction=False) as pipe:
            for key in lists_of(lane.namespace, status.request):
                pipe.llen(key)
            return sum(length or 0 for length in read_ignoring_wrong_types(pipe))

    def watch(self, status: JobStatus) -> AbstractAsyncContextManager[JobChanges]:
        """Yield the statuses of a job that was found, until it has ended; see `JobWatcher`."""
        return self._watch(status.id)

    def watch_submitted(self, caller: Caller, name: str) -> AbstractAsyncContextManager[JobChanges]:
        """Yield the statuses of a job that the caller has submitted, until it has ended."""
        return self._watch(stored_id(caller.tenant, name))

    @asynccontextmanager
    async def _watch(self, job_id: str) -> AsyncIterator[JobChanges]:
        async with self._watcher.watch(job_id) as changes:
            await self._threads.run(self._warn_if_no_worker)
            yield changes

    def _warn_if_no_worker(self) -> None:
        """Log a warning if a job waits for a worker and none is alive. Look once in ten seconds."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _LOOK_S
        with suppress(BrokerUnavailable):
            self._client.connection.warn_if_no_worker()

    async def wait(self, caller: Caller, name: str, timeout_s: float) -> JobStatus:
        """Return the status of a job that the caller has submitted once it has ended, or after
        `timeout_s` as it is then.

        Raises:
            Problem: 404, or 503 if this gateway ends before.
            UnreadableRecord, BrokerUnavailable.
        """
        async with self.watch_submitted(caller, name) as changes:
            try:
                async with asyncio.timeout(timeout_s):
                    async for _ in changes:
                        pass
            except TimeoutError:
                pass
            except UnknownJob:  # it was deleted
                raise unknown("job", name) from None
            if changes.closed:
                raise stopping()
            return changes.newest or await self.status(caller, name)

    async def cancel(self, caller: Caller, name: str) -> State:
        """Cancel a job, a running one between two steps. Return its state now.

        Raises Problem (404), UnreadableRecord.
        """
        status = await self.status(caller, name)
        return await self._threads.run(self._client.cancel, status.id)


def owns(caller: Caller, status: JobStatus) -> bool:
    """Return whether a job is the caller's."""
    return caller.tenant is None or status.request.tenant == caller.tenant


def name_of(caller: Caller, status: JobStatus) -> str:
    """Return the id of a job as the caller knows it."""
    return shown_id(caller.tenant, status.id)


def _allowed(caller: Caller, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with the caller's tenant. Raises Problem for what it may not ask."""
    given = {name: value for name, value in parameters.items() if value is not None}
    if "id" in given:
        raise wrong_field("id", given["id"], "is not a parameter of a job; the gateway chooses it")
    if caller.tenant is not None:
        if given.get("tenant", caller.tenant) != caller.tenant:
            limit = f"must be {caller.tenant}, the tenant of the key, or be left out"
            raise wrong_field("tenant", given["tenant"], limit)
        given["tenant"] = caller.tenant
    priority = given.get("priority", _DEFAULT_PRIORITY)
    if isinstance(priority, int) and priority < caller.max_priority:
        if "priority" in given:
            message = f"priority={priority}: must be at least {caller.max_priority} for {caller}"
            raise Problem(403, "priority_not_allowed", message, field="priority")
        given["priority"] = caller.max_priority
    return given


_DEFAULT_PRIORITY: Final = JobRequest.model_fields["priority"].default


def _in_use(name: str) -> Problem:
    message = f"the job {name!r}, which this id or Idempotency-Key names, has other parameters"
    return Problem(409, "id_in_use", message)


def _count_images(parameters: Mapping[str, Any]) -> int:
    """Return how many images a job makes, as far as its parameters are valid."""
    count = parameters.get("num_images_per_prompt", 1)
    if parameters.get("image_index") is not None or not isinstance(count, int):
        return 1
    return max(1, count)
