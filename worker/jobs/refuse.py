"""Refuse messages and jobs: a dead letter, a failed record, or both, and nothing else is touched.

Input: a claimed message and an error. Output: the released message, and what is left of it with the
reason.
"""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from imagefleet.shared.errors import ImagefleetError, TooManyDeliveries, UnreadableRecord
from imagefleet.shared.jobs.callback_events import Callback, build_callback
from imagefleet.shared.jobs.celery_message import RECORDED, TASK_NAME
from imagefleet.shared.jobs.dead_letters import DeadLetter, DeadLetters
from imagefleet.shared.jobs.message_arguments import request_fields
from imagefleet.shared.jobs.model import CallbackEvent, JobError, State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.shared.text import printable
from imagefleet.worker.queues.claim_types import Claimed
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

UNREADABLE_PROMPT: Final = "(the prompt cannot be read)"
"""The prompt in the record of a refused message that has no valid one."""


class Refuser:
    """The refuser ends messages that this worker will not run. Threads may share it."""

    def __init__(self, claims: Claims, records: JobRecords, dead_letters: DeadLetters) -> None:
        self._claims = claims
        self._records = records
        self._dead_letters = dead_letters
        self.on_job_failed: Callable[[str, ImagefleetError], None] = lambda job_id, error: None
        """Called with a job that failed although no request for it reaches Celery's pool."""

    def record_key(self, job_id: str) -> str:
        """Return the key of a job's record."""
        return self._records.key(job_id)

    def acknowledge(self, claimed: Claimed, job_id: str) -> None:
        """Acknowledge a message that Celery has finished with, if the record of its job has
        ended."""
        self._claims.ack(claimed.tag, self.record_key(job_id))

    def reject_message(self, claimed: Claimed, error: ImagefleetError) -> None:
        """Add a message to the dead letters, fail its job if it names one, and release its claim.

        Raises:
            redis.RedisError: Redis is away. The message is still claimed.
        """
        reason = printable(str(error))
        log.error("a message on %r goes to the dead letters: %s", claimed.list_key, reason)
        letter = self.add_dead_letter(claimed, error)
        headers = _headers(claimed.message)
        job_id = letter.job_id if headers.get("task") == TASK_NAME else None
        if job_id is None:
            self._claims.ack(claimed.tag)
            return
        try:
            self._fail_job(job_id, claimed, error, letter.arguments, bool(headers.get(RECORDED)))
        except Exception as failure:  # a damaged record must not keep the message here
            if is_outage(failure):
                raise
            log.exception(
                "job %s: its message is a dead letter, but its record cannot be changed", job_id
            )
            self._claims.ack(claimed.tag)
        else:
            self.acknowledge(claimed, job_id)

    def fail_started(self, job_id: str, claimed: Claimed, error: ImagefleetError) -> None:
        """Fail a job whose record is running by the attempt of this claim."""
        log.warning("job %s is refused: %s", job_id, error.code)
        if isinstance(error, TooManyDeliveries):
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

    def create_record(self, job_id: str, arguments: object) -> None:
        """Create the record of a message of plain Celery that is refused, if there is none.

        It holds those fields of the request that are valid.
        """
        self._records.create_if_missing(job_id, readable_request(arguments))

    def add_dead_letter(self, claimed: Claimed, error: ImagefleetError) -> DeadLetter:
        return self._dead_letters.add(
            claimed.list_key,
            claimed.message,
            code=error.code,
            reason=printable(str(error)),
            deliveries=claimed.deliveries,
        )

    def _fail_job(
        self,
        job_id: str,
        claimed: Claimed,
        error: ImagefleetError,
        arguments: object,
        recorded: bool,
    ) -> None:
        """Fail the job, unless it has ended or another claim runs it. Create its record if the
        message comes from plain Celery; a record that was stored together with its message, and is
        missing, has expired."""
        if self._claims.runs_elsewhere(self._records.running_attempt(job_id), claimed.tag):
            log.warning("job %s stays running: another message of it is in flight", job_id)
            return
        start = StartRequest(
            job_id=job_id,
            attempt=claimed.attempt,
            deliveries=claimed.deliveries,
            claim=(self._claims.key, claimed.tag),
        )
        [transition] = self._records.start(start)
        if transition.state is None and not recorded:
            self.create_record(job_id, arguments)
            [transition] = self._records.start(start)
        if transition.cancel_requested:
            self._records.cancel_unconditionally(job_id)
        elif transition.happened:
            self.fail_started(job_id, claimed, error)
            self.on_job_failed(job_id, error)

    def _callback(self, job_id: str, reason: JobError) -> Callback | None:
        try:
            [status] = self._records.read([job_id])
        except UnreadableRecord as error:
            log.warning("job %s fails without a callback: %s", job_id, error)
            return None
        if status is None:
            return None
        return build_callback(CallbackEvent.FAILED, job_id, status.request, error=reason)


def _headers(message: str) -> dict[str, Any]:
    with suppress(Exception):  # a dead letter may hold anything
        headers = json.loads(message)["headers"]
        return headers if isinstance(headers, dict) else {}
    return {}


def readable_request(arguments: object) -> JobRequest:
    """Return the request in the arguments of a message, without the fields that are wrong."""
    request = request_fields(arguments) if isinstance(arguments, dict) else None
    parameters: dict[str, Any] = request if isinstance(request, dict) else {}
    readable: dict[str, Any] = {"prompt": UNREADABLE_PROMPT}
    for name in JobRequest.model_fields:
        if name in parameters:
            with suppress(Exception):  # pydantic passes on what validators raise
                JobRequest.parse({**readable, name: parameters[name]})
                readable[name] = parameters[name]
    return JobRequest.parse(readable)
