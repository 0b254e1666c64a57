"""Execute a claimed job, from its attempt to its recorded end, in a thread of the Celery pool.

Input: a job id and the tag of its claim. Output: the job's result. The executor waits for the
images, has them stored, and decides after a failure whether the job ends, is retried, or is
requeued because this worker is to blame. It depends on neither Celery nor devices.
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
from imagefleet.shared.jobs.cancel import cancel
from imagefleet.shared.jobs.message_origin import sha1_of
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.result import JobResult
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.earlier_failures import with_earlier_failures
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.message_end import MessageEnd
from imagefleet.worker.jobs.planned_start import ReceivedMessage
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.process.log_format import log_fields
from imagefleet.worker.process.tracing import job_span
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

_POSSIBLE_STORE_ERRORS: Final = (
    StorageUnavailable,
    StorageDenied,
    ConfigurationError,
    WorkerError,
)
"""Errors that a broken store may cause. After one of them the store is checked."""


class JobExecutor:
    """Executes claimed jobs. Safe to share between threads."""

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

    def execute(self, job_id: str, tag: str, end: MessageEnd | None = None) -> JobResult:
        """Wait for a claimed job, store its images, record its end and return its result.

        Args:
            end: ends the message with the job. None: the caller acknowledges it later.

        Raises:
            ImagefleetError: why the job did not succeed. It is recorded already.
        """
        outcome = self._in_flight.get(tag)
        tenant = outcome.request.tenant if isinstance(outcome, Attempt) else None
        with log_fields(job_id=job_id, claim=tag, tenant=tenant):
            return self._execute(job_id, tag, outcome, end)

    def _execute(
        self,
        job_id: str,
        tag: str,
        outcome: Attempt | ImagefleetError | None,
        end: MessageEnd | None,
    ) -> JobResult:
        try:
            if outcome is None:
                return self._recorded_result(job_id)
            if isinstance(outcome, ImagefleetError):
                raise outcome
            return self._finish(outcome, end)
        except ImagefleetError:
            raise
        except Exception as error:  # Celery would drop it, and its claim would be held forever
            log.exception("job %s is requeued", job_id)
            self._claims.requeue(tag, counted=True)
            raise LeaseLost(f"job {job_id} was requeued") from error
        finally:
            self._in_flight.remove(tag)

    def end_revoked(self, job_id: str, message: ReceivedMessage) -> bool:
        """End a job as cancelled that Celery revoked, or that expired, before its task ran here.

        Return False, with only the message dropped, if its id is that of another job.
        """
        tag = message.claimed.tag
        outcome = self._in_flight.remove(tag)
        if isinstance(outcome, Attempt):
            outcome.abandon(JobCancelled(f"job {job_id} was revoked"))
        stored = self._records.stored_request(job_id)
        if stored is not None and not message.origin.matches(stored):
            log.warning("job %s stays as it is: a revoked message has other parameters", job_id)
            self._claims.ack(tag)
            return False
        if stored is not None:
            self._records.cancel_unconditionally(job_id, sha1_of(stored))
        return True

    def cancel(self, job_id: str) -> State:
        """Cancel a job of the namespace, wherever it waits or runs. Raises what `cancel` raises."""
        return cancel(self._records, job_id)

    def requeue(
        self,
        attempts: Sequence[Attempt],
        *,
        counted: bool = False,
        failure: tuple[str, str] | None = None,
    ) -> list[Attempt]:
        """Requeue the record, then the message, then wake the waiting threads. Celery acknowledges
        on wake-up, so the claim must be released first.

        The oldest attempt goes last and so ends nearest the head of its queue. Two round trips
        serve all attempts: one by one, hundreds would take longer than a preempted host has.

        Args:
            counted: whether the delivery counts against the messages.
            failure: the code and the message of what is kept in the records, if the attempts
                failed.

        Returns:
            Those whose messages were requeued, and whose jobs were not cancelled instead.
        """
        if not counted:
            self._claims.announce_requeue([attempt.tag for attempt in attempts])
        wanted, cancel_requested = self._requeue_records(attempts[::-1], failure)
        self._claims.requeue(*(attempt.tag for attempt in wanted), counted=counted)
        for attempt in wanted:
            attempt.abandon(LeaseLost(f"job {attempt.job_id} was requeued"))
        for attempt in cancel_requested:
            self._finisher.cancel(attempt)
            self._claims.ack(attempt.tag, self._records.key(attempt.job_id))
            attempt.abandon(JobCancelled(f"job {attempt.job_id} was cancelled"))
        return wanted

    def _requeue_records(
        self, attempts: Sequence[Attempt], failure: tuple[str, str] | None
    ) -> tuple[list[Attempt], list[Attempt]]:
        """Return the attempts whose messages should be requeued, and those whose jobs should be
        cancelled instead."""
        try:
            pairs = [(each.job_id, each.token) for each in attempts]
            transitions = self._records.requeue(*pairs, failure=failure)
        except (redis.ResponseError, ValueError):
            # One damaged record must not keep the messages here. The next worker reads the records
            # again when it starts the jobs.
            log.exception("records of requeued jobs may still say running")
            return list(attempts), []
        wanted: list[Attempt] = []
        cancel_requested: list[Attempt] = []
        for attempt, transition in zip(attempts, transitions, strict=True):
            (cancel_requested if transition.cancel_requested else wanted).append(attempt)
        return wanted, cancel_requested

    def _finish(self, attempt: Attempt, end: MessageEnd | None) -> JobResult:
        with job_span(
            attempt.trace_parent,
            attempt.began_at,
            job=attempt.job_id,
            attempt=attempt.deliveries,
            claim=attempt.tag,
            tenant=attempt.request.tenant or None,
            images=len(attempt.specs),
        ):
            return self._finish_or_record(attempt, end)

    def _finish_or_record(self, attempt: Attempt, end: MessageEnd | None) -> JobResult:
        """Finish the attempt, or record why its job did not succeed and raise that."""
        try:
            return self._finisher.finish(attempt, end)
        except LeaseLost:
            raise
        except JobCancelled:
            self._finisher.cancel(attempt)
            raise
        except ImagefleetError as error:
            self._retry_or_fail(attempt, error)
            raise
        except redis.RedisError:
            raise  # it says nothing about the job
        except Exception as error:
            log.exception("job %s failed with an unexpected error", attempt.job_id)
            failure = WorkerError(f"{type(error).__name__}: {error}")
            self._retry_or_fail(attempt, failure)
            raise failure from error

    def _retry_or_fail(self, attempt: Attempt, error: ImagefleetError) -> None:
        """Requeue, retry or fail the job after `error`.

        Raises:
            LeaseLost: the job is requeued or retried.
            JobCancelled: its producer asked to cancel it.
        """
        if isinstance(error, _POSSIBLE_STORE_ERRORS) and not self._health.storage_ok():
            # The store would have failed any job. From now on this worker takes none.
            self.requeue([attempt])
            raise LeaseLost(f"job {attempt.job_id} was requeued") from error
        try:
            retried = self._retries.schedule_retry(attempt, error)
        except JobCancelled:
            self._finisher.cancel(attempt)
            raise
        if retried:
            raise LeaseLost(f"job {attempt.job_id} is retried later") from error
        error = with_earlier_failures(error, attempt.failures, attempt.worker)
        self._finisher.fail(attempt, error)

    def _recorded_result(self, job_id: str) -> JobResult:
        """Return the recorded result of a job that ended before its message was claimed.

        Raises:
            JobCancelled, JobFailed: the job ended so.
            LeaseLost: it has not ended; another attempt holds it.
        """
        status = self._records.get(job_id)
        if status.result is not None:
            return status.result
        if status.state is State.CANCELLED:
            raise JobCancelled(f"job {job_id} was cancelled")
        if status.error is not None:
            raise JobFailed(status.error.message, status.error.code)
        raise LeaseLost(f"job {job_id}: another attempt holds it")
