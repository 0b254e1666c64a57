"""Read, list, await, cancel, delete and resend jobs of any producer.

Waiting polls the job records. It opens no channel per job, so waiting for ten thousand jobs costs
one round trip per poll.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Final

from imagefleet.producer.client.job import Job, Polling
from imagefleet.producer.client.job_filter import JobFilter
from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.errors import UnknownJob, UnreadableRecord
from imagefleet.shared.jobs.model import TERMINAL, State, check_job_id
from imagefleet.shared.jobs.status import JobStatus, unknown_job_error

log = logging.getLogger(__name__)


class JobAccess:
    """The methods of a client for jobs that are submitted already. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Final = connection
        self._records = connection.records

    def get(self, job_id: str) -> Job:
        """Return the handle of any producer's job. Raises UnknownJob, UnreadableRecord."""
        (job := Job(id=check_job_id(job_id), client=self)).status()
        return job

    def statuses(self, job_ids: Iterable[str]) -> list[JobStatus]:
        """Return the records of many jobs in one round trip, without those that do not exist.

        A record that cannot be read is left out too, and logged; see `lookup`.
        """
        answers = self.lookup(job_ids)
        for answer in answers:
            if isinstance(answer, UnreadableRecord):
                log.warning("%s", answer)
        return [answer for answer in answers if isinstance(answer, JobStatus)]

    def lookup(self, job_ids: Iterable[str]) -> "list[JobStatus | UnknownJob | UnreadableRecord]":
        """Return for each job its record, or the error that says why there is none.

        One round trip. The error of one job does not affect the others.
        """
        ids = list(job_ids)
        answers = self.connection.read_statuses(ids)
        return [
            unknown_job_error(job_id) if answer is None else answer
            for job_id, answer in zip(ids, answers, strict=True)
        ]

    def jobs(
        self,
        *,
        state: State | str | None = None,
        tenant: str | None = None,
        since: datetime | float | None = None,
    ) -> Iterator[JobStatus]:
        """Yield all jobs of the namespace, in any order, each once.

        There is no index of jobs, so that submitting stays cheap. This looks at every key in Redis,
        page by page, while others are served; 100,000 records cost about 5 s of CPU here. It keeps
        the ids that it has yielded. A job that is submitted or deleted meanwhile may be missing. A
        record that cannot be read is left out, and logged. So are the jobs of a lane of a cluster
        that does not answer.

        Args:
            state: yield only jobs in this state.
            tenant: yield only jobs of this tenant; '' stands for the jobs without a tenant.
            since: yield only jobs submitted at this time or later: a datetime, or Unix seconds.

        Raises:
            InvalidRequest: there is no such state, or a value has another type.
        """
        wanted = JobFilter.parse(state, tenant, since)
        return chain.from_iterable(self.job_pages(wanted))

    def job_pages(self, wanted: JobFilter) -> Iterator[list[JobStatus]]:
        """Yield the jobs that `wanted` accepts, page by page; see `jobs`."""
        seen: set[str] = set()
        for ids in self.connection.list_jobs(wanted.state, wanted.since):
            new = [job_id for job_id in dict.fromkeys(ids) if job_id not in seen]
            seen.update(new)
            yield [status for status in self.statuses(new) if wanted.accepts(status)]

    def as_completed(self, jobs: Iterable[Job], *, timeout: float | None = None) -> Iterator[Job]:
        """Yield each job as it ends, in whichever state.

        Log a warning if no worker is alive. Outages of Redis after its first answer are waited for.

        Raises:
            ResultTimeout: `timeout` seconds have passed, and not all jobs have ended.
            BrokerUnavailable: Redis does not answer the first time, or not at the timeout.
        """
        waiting = {job.id: job for job in jobs}
        yield from self.await_jobs(waiting, Polling(waiting, timeout))

    def cancel(self, job_id: str) -> State:
        """Cancel a job, a running one between two steps, and return its state now.

        Raises UnknownJob, UnreadableRecord.
        """
        return self.connection.cancel(job_id)

    def delete(self, job_id: str) -> None:
        """Delete the images and metadata of a job that has ended, then its record.

        Images that the job started from, and datasets, stay. So do dead letters and callbacks.

        Raises:
            InvalidRequest: the job has not ended; nothing was deleted.
            UnknownJob, UnreadableRecord: nothing was deleted.
            ConfigurationError, StorageDenied, StorageUnavailable: the images cannot be deleted;
                the record stays, so the call can be repeated.
        """
        self.connection.delete(job_id)

    def resend(self, job_id: str) -> bool:
        """Queue the message of a queued job again if it has none, as after `celery purge`.

        Return whether it was. `submit` with the same id and parameters does so after a minute.
        Raises UnknownJob, UnreadableRecord.
        """
        with self.connection.translate_errors():
            by_compile_key = bool(self.connection.offers())
            return self._records.resend(check_job_id(job_id), by_compile_key=by_compile_key)

    def await_jobs(self, waiting: dict[str, Job], polls: Polling) -> Iterator[Job]:
        """Yield the jobs of `waiting` (by id) as they end, as `as_completed` does."""
        outages = polls.outages
        for interval in polls.intervals():
            if ended := outages.read(lambda: self.pop_ended(waiting, warn=not outages.answered)):
                yield from ended
            if waiting:
                time.sleep(interval)

    def pop_ended(self, waiting: dict[str, Job], *, warn: bool = False) -> list[Job]:
        """Remove from `waiting` (by id) the jobs that have ended, and return them. One round trip.

        A job without a record, or with an unreadable one, counts as ended: its status says why. One
        of a lane that does not answer has not ended.

        Args:
            warn: whether to log a warning if jobs are left and no worker is alive.
        """
        ids = list(waiting)
        with self.connection.translate_errors():
            states = self._records.known_states(ids)
        ended = [job_id for job_id, state in states.items() if state in (None, *TERMINAL)]
        if warn and len(ended) < len(ids):
            self.connection.warn_if_no_worker()
        return [waiting.pop(job_id) for job_id in ended]
