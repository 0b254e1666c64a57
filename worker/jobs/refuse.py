"""Refuse messages and jobs: a dead letter, a failed record, or both, and nothing else is touched.

Input: a claimed message and an error. Output: the released message, and what is left of it with the
reason.
"""

import logging
from collections.abc import Callable
from typing import Final

from imagefleet.shared.errors import (
    DeviceError,
    ImagefleetError,
    MessageRejected,
    TooManyDeliveries,
    UnreadableRecord,
)
from imagefleet.shared.jobs.callback_events import Callback, JobTimes, build_callback
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, headers_of
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_origin import MessageOrigin, sha1_of
from imagefleet.shared.jobs.model import JOB_ID, CallbackEvent, JobError, State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.shared.text.printable import printable
from imagefleet.worker.process.log_format import log_fields
from imagefleet.worker.queues.claim_types import Claimed
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

_MAX_TASK_ID: Final = 255
"""Characters of the id of a task whose failure is stored."""


class Refuser:
    """The refuser ends messages that this worker will not run. Threads may share it."""

    def __init__(
        self,
        claims: Claims,
        records: JobRecords,
        dead_letters: DeadLetters,
        is_here: Callable[[str], bool] = lambda job_id: True,
    ) -> None:
        """Take a function that returns whether the job of an id belongs to the lane of `claims`."""
        self._is_here = is_here
        self._claims = claims
        self._records = records
        self._dead_letters = dead_letters
        self.on_job_failed: Callable[[str, ImagefleetError], None] = lambda job_id, error: None
        """Called with a job that failed although no request for it reaches Celery's pool."""
        self.on_task_rejected: Callable[[str, ImagefleetError], None] = lambda task_id, error: None
        """Called with the id of a task of plain Celery that is no job and will never run."""

    def record_key(self, job_id: str) -> str:
        """Return the key of a job's record."""
        return self._records.key(job_id)

    def check_lane(self, job_id: str) -> None:
        """Raise MessageRejected for a message in the queue of another lane than that of its job,
        where nobody would find its record. No producer of ours puts it there."""
        if not self._is_here(job_id):
            raise MessageRejected(f"the id {job_id!r} belongs to another lane of the cluster")

    def acknowledge(self, claimed: Claimed, job_id: str) -> None:
        """Acknowledge a message that Celery has finished with, if the record of its job has
        ended."""
        self._claims.ack(claimed.tag, self.record_key(job_id))

    def reject_message(self, claimed: Claimed, error: ImagefleetError) -> None:
        """Add a message to the dead letters, fail its job if it names one, and release its claim.
        The message of a job that was deleted, and whose id another job has, is only dropped.

        Raises:
            redis.RedisError: Redis is away. The message is still claimed.
        """
        origin = MessageOrigin.parse(claimed.message)
        job_id = None if origin is None else origin.job_id
        with log_fields(job_id=job_id, claim=claimed.tag):
            self._reject(claimed, origin, error)

    def _reject(
        self, claimed: Claimed, origin: MessageOrigin | None, error: ImagefleetError
    ) -> None:
        stored = None if origin is None else self._records.stored_request(origin.job_id)
        if origin is None or stored is None or origin.matches(stored):
            self._add_and_log(claimed, error)
            if origin is None:
                self._fail_other_task(claimed, error)
            self._fail_job(origin, stored, claimed, error)
        elif origin.recorded:
            self.drop_superseded(claimed, origin.job_id)
        else:
            self.reject_foreign(claimed, origin.job_id, error)

    def drop_superseded(self, claimed: Claimed, job_id: str) -> None:
        """Drop the message of a job that was deleted, and whose id another job has."""
        log.warning("a message of job %s is dropped: the job was deleted", job_id)
        self._claims.ack(claimed.tag)

    def reject_foreign(
        self, claimed: Claimed, job_id: str, error: ImagefleetError | None = None
    ) -> None:
        """Add a message of plain Celery to the dead letters that has the id of another job. The
        record of this job stays as it is.

        Args:
            error: what else is wrong with the message.
        """
        in_use = MessageRejected(f"the id {job_id!r} is in use for a job with other parameters")
        self._add_and_log(claimed, error or in_use)
        log.warning("job %s stays as it is: the message has other parameters", job_id)
        self._claims.ack(claimed.tag)

    def fail_started(self, job_id: str, claimed: Claimed, error: ImagefleetError) -> None:
        """Fail a job whose record is running by the attempt of this claim."""
        log.warning("job %s is refused: %s", job_id, error.code)
        if isinstance(error, TooManyDeliveries | DeviceError):
            self.add_dead_letter(claimed, error)
        reason = JobError(code=error.code, message=printable(str(error)))
        self._records.fail(job_id, claimed.attempt, reason, self._callback(job_id, reason))

    def fail_queued(
        self, job_id: str, request: JobRequest, error: ImagefleetError
    ) -> TransitionResult:
        """Fail a job that no attempt has started. It leaves no dead letter."""
        reason = JobError(code=error.code, message=printable(str(error)))
        event = build_callback(CallbackEvent.FAILED, job_id, request, error=reason)
        return self._records.fail(job_id, "", reason, event, from_states=[State.QUEUED])

    def add_dead_letter(self, claimed: Claimed, error: ImagefleetError) -> None:
        self._dead_letters.add(
            claimed.list_key,
            claimed.message,
            code=error.code,
            reason=printable(str(error)),
            deliveries=claimed.deliveries,
            worker=self._claims.worker,
        )

    def _add_and_log(self, claimed: Claimed, error: ImagefleetError) -> None:
        reason = printable(str(error))
        log.error("a message on %r goes to the dead letters: %s", claimed.list_key, reason)
        self.add_dead_letter(claimed, error)

    def _fail_other_task(self, claimed: Claimed, error: ImagefleetError) -> None:
        """Tell who waits for a task of another name, or with an id that no job may have.

        Whoever sends a message chooses its id, so the id of a job is left alone.
        """
        headers = headers_of(claimed.message)
        task_id, task = headers.get("id"), headers.get("task")
        if not isinstance(task_id, str) or task == BULK_TASK_NAME or headers.get("ignore_result"):
            return
        if not 0 < len(task_id) <= _MAX_TASK_ID or printable(task_id) != task_id:
            return
        if JOB_ID.fullmatch(task_id) and self._records.stored_request(task_id) is not None:
            return
        try:
            self.on_task_rejected(task_id, error)
        except Exception as failure:  # anybody can write anything to a queue
            if is_outage(failure):
                raise
            log.exception("task %s is refused, and who waits for it is not told", task_id)

    def _fail_job(
        self,
        origin: MessageOrigin | None,
        stored: str | None,
        claimed: Claimed,
        error: ImagefleetError,
    ) -> None:
        """Fail the job of a message that became a dead letter, if it names one, and release its
        claim. `stored` is the request in the record of the job, None if it has none."""
        if origin is None:
            self._claims.ack(claimed.tag)
            return
        try:
            is_own = self._fail_record(origin, stored, claimed, error)
        except Exception as failure:  # a damaged record must not keep the message here
            if is_outage(failure):
                raise
            log.exception(
                "job %s: its message is a dead letter, but its record cannot be changed",
                origin.job_id,
            )
            self._claims.ack(claimed.tag)
        else:
            self._claims.ack(claimed.tag, self.record_key(origin.job_id) if is_own else "")

    def _fail_record(
        self, origin: MessageOrigin, stored: str | None, claimed: Claimed, error: ImagefleetError
    ) -> bool:
        """Fail the job, unless it has ended or another claim runs it. Create its record if the
        message comes from plain Celery; a record that was stored together with its message, and is
        missing, has expired. Return False if the record became that of another job meanwhile."""
        job_id = origin.job_id
        if self._claims.runs_elsewhere(self._records.running_attempt(job_id), claimed.tag):
            log.warning("job %s stays running: another message of it is in flight", job_id)
            return True
        start = StartRequest(
            job_id=job_id,
            attempt=claimed.attempt,
            deliveries=claimed.deliveries,
            claim=(self._claims.key, claimed.tag),
            request_sha1=origin.request_sha1 if stored is None else sha1_of(stored),
        )
        [transition] = self._records.start(start)
        if transition.state is None and not origin.recorded and self._is_here(job_id):
            self._records.create_if_missing(job_id, origin.request())
            [transition] = self._records.start(start)
        if transition.cancel_requested:
            self._records.cancel_unconditionally(job_id, start.request_sha1)
        elif transition.happened:
            self.fail_started(job_id, claimed, error)
            self.on_job_failed(job_id, error)
        return not transition.superseded

    def _callback(self, job_id: str, reason: JobError) -> Callback | None:
        try:
            [status] = self._records.read([job_id])
        except UnreadableRecord as error:
            log.warning("job %s fails without a callback: %s", job_id, error)
            return None
        if status is None:
            return None
        return build_callback(
            CallbackEvent.FAILED,
            job_id,
            status.request,
            error=reason,
            worker=status.worker,
            times=JobTimes(submitted_at=status.submitted_at, started_at=status.started_at),
        )
