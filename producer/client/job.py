"""The handle of a submitted job, and the polling that waits for jobs.

Input: a handle, with the client that reads records. Output: states and results. This module neither
uses Redis nor submits jobs.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

from imagefleet.producer.connection.outages import OutageTolerance, deadline_of
from imagefleet.shared.errors import (
    ImagefleetError,
    JobCancelled,
    JobFailed,
    ResultTimeout,
    UnknownJob,
    UnreadableRecord,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.process.backoff import Jitter, backoff_s

MIN_POLL_S: Final = 0.01
"""Seconds between the first two polls; each later interval is 1.5 times as long."""
MAX_POLL_S: Final = 0.25


class JobReader(Protocol):
    """The methods of `Client` that a handle calls."""

    def lookup(self, job_ids: Iterable[str]) -> list[JobStatus | UnknownJob | UnreadableRecord]: ...

    def await_jobs(self, waiting: "dict[str, Job]", polls: "Polling") -> "Iterator[Job]": ...

    def cancel(self, job_id: str) -> State: ...

    def delete(self, job_id: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """The handle of one job: its id and the client that reads its record.

    A handle holds no connection and no copy of the record.
    """

    id: str
    client: JobReader = field(repr=False, compare=False)

    def status(self) -> JobStatus:
        """Return the job's record as it is now.

        Raises:
            UnknownJob: Redis holds no record of the job.
            UnreadableRecord: the record is damaged, or of a newer release.
        """
        [status] = self.client.lookup([self.id])
        if not isinstance(status, JobStatus):
            raise status
        return status

    def result(self, timeout: float | None = None) -> JobResult:
        """Wait until the job ends, and return its result.

        Raises:
            ResultTimeout: `timeout` seconds passed. The job continues.
            BrokerUnavailable: Redis did not answer at first, or not at the timeout. An outage in
                between is waited for.
            JobFailed, JobCancelled: the job ended without a result.
            UnknownJob: Redis holds no record of the job.
            UnreadableRecord: the record is damaged, or of a newer release.
        """
        return self.await_result(timeout, OutageTolerance())

    def await_result(self, timeout: float | None, outages: OutageTolerance) -> JobResult:
        """Return the result as `result` does; several waits may share `outages`."""
        waiting = {self.id: self}
        for _ in self.client.await_jobs(waiting, Polling(waiting, timeout, outages)):
            pass
        return result_or_raise(outages.await_answer(self.status))

    def cancel(self) -> State:
        """Cancel the job; see `Client.cancel`."""
        return self.client.cancel(self.id)

    def delete(self) -> None:
        """Delete the job, which must have ended, and its images; see `Client.delete`."""
        self.client.delete(self.id)


def result_or_raise(status: JobStatus) -> JobResult:
    """Return the result of a job that succeeded.

    Raises:
        JobFailed, JobCancelled: the job ended in that state.
        ResultTimeout: the job has not ended.
    """
    if status.state is State.CANCELLED:
        raise JobCancelled(f"job {status.id} was cancelled")
    if status.error is not None:
        raise JobFailed(f"job {status.id} failed: {status.error.message}", status.error.code)
    if status.result is None:
        raise ResultTimeout(f"job {status.id} is still {status.state}")
    return status.result


def result_or_error(
    job: Job, timeout: float | None, outages: OutageTolerance
) -> JobResult | ImagefleetError:
    """Wait for the job, and return its result or the error that `result` raises."""
    try:
        return job.await_result(timeout, outages)
    except ImagefleetError as error:
        return error


class Polling:
    """One wait for jobs: when to poll and when to give up. `outages` reads the polls."""

    def __init__(
        self,
        waiting: Collection[object],
        timeout: float | None,
        outages: OutageTolerance | None = None,
    ) -> None:
        """Wait until the caller has emptied `waiting`, or for `timeout` seconds.

        Args:
            outages: the tolerance of earlier waits, which gets the deadline of this one.

        Raises:
            InvalidRequest: `timeout` is not a number.
        """
        self._waiting = waiting
        self._timeout = timeout
        self.outages: Final = outages or OutageTolerance()
        self.outages.deadline = deadline_of(timeout)

    def intervals(self) -> Iterator[float]:
        """Yield growing intervals in seconds until `waiting` is empty.

        The caller polls after each yield, removes what has ended, and sleeps for the interval.

        Raises:
            ResultTimeout: the timeout has passed and `waiting` is not empty.
        """
        for polls in count():
            interval = backoff_s(
                polls, min_s=MIN_POLL_S, max_s=MAX_POLL_S, factor=1.5, jitter=Jitter.NONE
            )
            remaining = self.outages.deadline - time.monotonic()
            yield min(interval, max(remaining, 0.0))
            if not self._waiting:
                return
            if remaining <= 0:
                raise self._timed_out()

    def _timed_out(self) -> ResultTimeout:
        left = len(self._waiting)
        subject = "1 job is" if left == 1 else f"{left} jobs are"
        return ResultTimeout(
            f"{subject} not done after {self._timeout:g} s; the fleet continues, so you can wait "
            "again"
        )
