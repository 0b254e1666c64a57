"""Start the jobs of requests that Celery received: an attempt comes out, or why there is none.

Acquire the job record (compare-and-set) before deciding the outcome. So a refusal ends only a job
that no other attempt holds, and never one that has ended. The starter knows no batches, no devices
and no pool.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import redis
from celery.worker.request import Request

from imagefleet.shared.errors import ImagefleetError, MessageRejected, TooManyDeliveries
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.celery_message import RECORDED
from imagefleet.shared.jobs.dead_letters import DeadLetter, DeadLetters
from imagefleet.shared.jobs.events import build_callback
from imagefleet.shared.jobs.model import TERMINAL, CallbackEvent, JobError
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest, unpack
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult
from imagefleet.worker.engine.interface import ModelInfo
from imagefleet.worker.jobs.attempt import Attempt, offer_of, plan_attempt
from imagefleet.worker.queues.claims import Claimed, Claims

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _PlannedStart:
    """The outcome of a message, if its attempt acquires the job record."""

    job_id: str
    claimed: Claimed
    outcome: Attempt | ImagefleetError
    request: JobRequest | None = None
    """None if it cannot be read."""
    recorded: bool = True
    """Whether the record was created together with the message. If such a record is missing, it has
    expired."""


class JobStarter:
    """Starts the jobs that one worker claimed."""

    def __init__(
        self,
        claims: Claims,
        records: JobRecords,
        dead_letters: DeadLetters,
        info: ModelInfo,
        max_deliveries: int,
    ) -> None:
        self._claims = claims
        self._records = records
        self._dead_letters = dead_letters
        self._info = info
        offer = offer_of(info)
        self._offers = {offer.model: offer, DEFAULT_MODEL: offer}
        self._max_deliveries = max_deliveries

    def start(self, requests: Sequence[Request]) -> list[Attempt | ImagefleetError | None]:
        """Start the job of each request. Return its attempt, the reason why it was refused, or None
        if there is nothing to do for it.

        The claim of a request may be released already (`Claims.holds`); it needs nothing more.
        """
        plans = [self._plan_start(request) for request in requests]
        starts = [self._start_request(plan) for plan in plans if plan is not None]
        transitions = iter(self._records.start(*starts))
        return [
            None if plan is None else self._apply_transition(plan, next(transitions))
            for plan in plans
        ]

    def record_key(self, job_id: str) -> str:
        """Return the key of a job's record."""
        return self._records.key(job_id)

    def acknowledge(self, claimed: Claimed, job_id: str) -> None:
        """Acknowledge a request that Celery has finished with, if the record of its job has
        ended."""
        self._claims.ack(claimed.tag, self._records.key(job_id))

    def add_to_dead_letters(self, claimed: Claimed, reason: str) -> None:
        """Add a message that cannot be read to the dead letters, and fail its job if it has one."""
        log.error("a message on %r goes to the dead letters: %s", claimed.list_key, reason)
        error = MessageRejected(reason)
        letter = self._add_dead_letter(claimed, error)
        if letter.job_id is not None:
            plan = _PlannedStart(job_id=letter.job_id, claimed=claimed, outcome=error)
            [transition] = self._records.start(self._start_request(plan))
            self._apply_transition(plan, transition)
            self.acknowledge(claimed, letter.job_id)
        else:
            self._claims.ack(claimed.tag)

    def _plan_start(self, request: Request) -> _PlannedStart | None:
        """Return None if the request was revoked or cannot be read."""
        claimed: Claimed = request.message.claimed
        recorded = RECORDED in request.message.headers
        plan = partial(_PlannedStart, job_id=request.id, claimed=claimed, recorded=recorded)
        job_request = None
        try:
            if request.revoked():
                return None
            job_request = unpack(request.request_dict["kwargs"], request.id)
            attempt = self._plan_attempt(request.id, job_request, claimed)
            return plan(request=job_request, outcome=attempt)
        except redis.RedisError:
            raise
        except ImagefleetError as error:
            return plan(request=job_request, outcome=error)
        except Exception as error:  # any client can write anything to a queue
            log.error("job %s", request.id, exc_info=error)
            self.add_to_dead_letters(claimed, f"cannot be started: {type(error).__name__}: {error}")
            return None

    def _plan_attempt(self, job_id: str, request: JobRequest, claimed: Claimed) -> Attempt:
        admit(request, self._offers)
        if claimed.deliveries > self._max_deliveries:
            raise TooManyDeliveries(
                f"{self._max_deliveries} workers died with this job; it is not tried again"
            )
        return plan_attempt(
            job_id,
            request,
            self._info,
            deliveries=claimed.deliveries,
            tag=claimed.tag,
            token=claimed.attempt,
        )

    def _start_request(self, plan: _PlannedStart) -> StartRequest:
        started = None
        if isinstance(plan.outcome, Attempt):
            started = build_callback(CallbackEvent.STARTED, plan.job_id, plan.outcome.request)
        return StartRequest(
            job_id=plan.job_id,
            attempt=plan.claimed.attempt,
            deliveries=plan.claimed.deliveries,
            callback=started,
            claim=(self._claims.key, plan.claimed.tag),
        )

    def _apply_transition(
        self, plan: _PlannedStart, transition: TransitionResult
    ) -> Attempt | ImagefleetError | None:
        """Return the outcome of the message, given the answer of its job record."""
        if transition.state is None and plan.request is not None and not plan.recorded:
            self._records.create_if_missing(plan.job_id, plan.request)
            [transition] = self._records.start(self._start_request(plan))
        if transition.cancel_requested:
            self._records.cancel_unconditionally(plan.job_id)
            return None
        if transition.state in TERMINAL or (transition.state is None and plan.recorded):
            return None
        if transition.state is not None and not transition.happened:
            self._claims.requeue(plan.claimed.tag)  # by now another worker holds the message
            return None
        if isinstance(plan.outcome, ImagefleetError):
            self._refuse(plan, plan.outcome)
        else:
            plan.outcome.submitted_at = transition.submitted_at
            plan.outcome.retries = transition.retries
        return plan.outcome

    def _refuse(self, plan: _PlannedStart, error: ImagefleetError) -> None:
        log.warning("job %s is refused: %s", plan.job_id, error.code)
        if isinstance(error, TooManyDeliveries):
            self._add_dead_letter(plan.claimed, error)
        [status] = self._records.read([plan.job_id])
        if status is not None:
            reason = JobError(code=error.code, message=str(error))
            event = build_callback(CallbackEvent.FAILED, plan.job_id, status.request, error=reason)
            self._records.fail(plan.job_id, plan.claimed.attempt, reason, event)

    def _add_dead_letter(self, claimed: Claimed, error: ImagefleetError) -> DeadLetter:
        return self._dead_letters.add(
            claimed.list_key,
            claimed.message,
            code=error.code,
            reason=str(error),
            deliveries=claimed.deliveries,
        )
