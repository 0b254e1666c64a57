"""A claimed job, from its attempt to its recorded end: what the Celery task does, in a pool thread.

Waits for the pictures, has them stored, and decides what a failure comes to: the end, another
attempt, or the worker's own fault. Knows no Celery and no devices.
"""

import logging
from collections.abc import Sequence
from typing import Final

import redis

from imagefleet.shared.errors import (
    ConfigurationError,
    ImagefleetError,
    JobCancelled,
    JobFailed,
    LeaseLost,
    StorageDenied,
    StorageUnavailable,
    WorkerError,
)
from imagefleet.shared.jobs.model import JobResult, State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.devices.health import HealthCheck
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.retry import RetryPolicy
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

_PERHAPS_THE_STORE_S: Final = (StorageUnavailable, StorageDenied, ConfigurationError, WorkerError)


class JobExecutor:
    """Safe to share between threads."""

    def __init__(
        self,
        in_flight: InFlight,
        records: JobRecords,
        claims: Claims,
        finisher: JobFinisher,
        retries: RetryPolicy,
        health: HealthCheck,
    ) -> None:
        self._in_flight = in_flight
        self._records = records
        self._claims = claims
        self._finisher = finisher
        self._retries = retries
        self._health = health

    def perform(self, job_id: str, tag: str) -> JobResult:
        """See a claimed job to its end.

        Raises:
            ImagefleetError: how it ended, if not well; recorded already.
        """
        found = self._in_flight.get(tag)
        try:
            if found is None:
                return self._ended_before(job_id)
            if isinstance(found, ImagefleetError):
                raise found
            return self._finish(found)
        except ImagefleetError:
            raise
        except Exception as error:  # Celery would drop it, and its claim would be held for ever
            log.exception("job %s goes back to the queue", job_id)
            self._claims.requeue(tag)
            raise LeaseLost(f"job {job_id} was handed back") from error
        finally:
            self._in_flight.remove(tag)

    def withdraw(self, job_id: str, tag: str) -> None:
        """Celery revoked the job, or it expired, before its task ran here."""
        found = self._in_flight.remove(tag)
        if isinstance(found, Attempt):
            found.abandon(JobCancelled(f"job {job_id} was revoked"))
        self._records.withdraw(job_id)

    def requeue(self, attempts: Sequence[Attempt], *, counted: bool = False) -> int:
        """Records, messages, and then whoever waits: Celery acknowledges what was given up, and
        must find the claim gone. The oldest last: it ends nearest the head of its queue. In two
        round trips: one by one, hundreds take longer than a host that is taken away has. How many
        messages went."""
        wanted, cancel_requested = self._requeue(attempts[::-1])
        went = self._claims.requeue(*(attempt.tag for attempt in wanted), counted=counted)
        for attempt in wanted:
            attempt.abandon(LeaseLost(f"job {attempt.job_id} was handed back"))
        for attempt in cancel_requested:
            self._finisher.cancel(attempt)
            self._claims.ack(attempt.tag, self._records.key(attempt.job_id))
            attempt.abandon(JobCancelled(f"job {attempt.job_id} was cancelled"))
        return went

    def _requeue(self, attempts: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        """By their records; those that are to be handed back, and those that nobody wants."""
        try:
            moves = self._records.requeue(*((each.job_id, each.token) for each in attempts))
        except redis.ResponseError:
            # One record keeps nobody's message here. Whoever gets it next asks what is wanted.
            log.exception("records of jobs that go back may still say running")
            return list(attempts), []
        wanted: list[Attempt] = []
        cancel_requested: list[Attempt] = []
        for attempt, move in zip(attempts, moves, strict=True):
            (cancel_requested if move.cancel_requested else wanted).append(attempt)
        return wanted, cancel_requested

    def _finish(self, attempt: Attempt) -> JobResult:
        try:
            return self._finisher.finish(attempt)
        except LeaseLost:
            raise
        except JobCancelled:
            self._finisher.cancel(attempt)
            raise
        except ImagefleetError as error:
            self._fail(attempt, error)
            raise
        except redis.RedisError:
            raise  # says nothing about the job
        except Exception as error:
            log.exception("job %s failed in a way nobody thought of", attempt.job_id)
            failure = WorkerError(f"{type(error).__name__}: {error}")
            self._fail(attempt, failure)
            raise failure from error

    def _fail(self, attempt: Attempt, error: ImagefleetError) -> None:
        """Raises LeaseLost if the job is tried again, JobCancelled if nobody wants that."""
        if isinstance(error, _PERHAPS_THE_STORE_S) and not self._health.storage_ok():
            self.requeue([attempt])  # it would have failed any job, and takes none from now on
            raise LeaseLost(f"job {attempt.job_id} was handed back") from error
        try:
            again = self._retries.schedule_retry(attempt, error)
        except JobCancelled:
            self._finisher.cancel(attempt)
            raise
        if again:
            raise LeaseLost(f"job {attempt.job_id} is tried again later") from error
        self._finisher.fail(attempt, error)

    def _ended_before(self, job_id: str) -> JobResult:
        status = self._records.get(job_id)
        if status.result is not None:
            return status.result
        if status.state is State.CANCELLED:
            raise JobCancelled(f"job {job_id} was cancelled")
        if status.error is not None:
            raise JobFailed(status.error.message, status.error.code)
        raise LeaseLost(f"job {job_id} is somebody else's")
