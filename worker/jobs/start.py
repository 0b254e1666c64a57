"""From a request that Celery received to an attempt that has begun, or to the reason why not.

Whatever a message comes to, it takes the record of its job first, by the same compare-and-set: so a
refusal ends a job that nobody works on any more, and never one that ended before. Knows no batches,
no devices and no pool.
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
from imagefleet.shared.jobs.events import callback
from imagefleet.shared.jobs.model import TERMINAL, CallbackEvent, JobError, JobRequest, unpack
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.records import JobRecords, StartRequest, TransitionResult
from imagefleet.worker.engine.interface import ModelInfo
from imagefleet.worker.jobs.attempt import Attempt, offer_of, plan_attempt
from imagefleet.worker.queues.claims import Claimed, Claims

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What a message comes to if it may have its job."""

    job_id: str
    claimed: Claimed
    comes_to: Attempt | ImagefleetError
    asked: JobRequest | None = None
    """None if nobody can read it."""
    recorded: bool = True
    """Whether its record was made together with the message: if it is missing, it has expired."""


class JobStarter:
    """Of one worker."""

    def __init__(
        self,
        claims: Claims,
        records: JobRecords,
        dead: DeadLetters,
        info: ModelInfo,
        max_deliveries: int,
    ) -> None:
        self._claims = claims
        self._records = records
        self._dead = dead
        self._info = info
        offer = offer_of(info)
        self._offers = {offer.model: offer, DEFAULT_MODEL: offer}
        self._max_deliveries = max_deliveries

    def begin(self, requests: Sequence[Request]) -> list[Attempt | ImagefleetError | None]:
        """For each request its attempt, why there can be none, or None if its job had ended before.

        Some need nothing more: their claim is let go already (`Claims.holds`).
        """
        plans = [self._plan(request) for request in requests]
        beginnings = [self._beginning(plan) for plan in plans if plan is not None]
        moves = iter(self._records.begin(*beginnings))
        return [None if plan is None else self._settle(plan, next(moves)) for plan in plans]

    def acknowledge(self, claimed: Claimed, job_id: str) -> None:
        """Celery is done with a request: its message goes, if its job's record has ended."""
        self._claims.ack(claimed.tag, self._records.key(job_id))

    def bury(self, claimed: Claimed, reason: str) -> None:
        """Keep a message that nobody can read among the dead letters, and end its job if it has
        one."""
        log.error("message on %r goes to the dead letters: %s", claimed.list_key, reason)
        error = MessageRejected(reason)
        letter = self._keep(claimed, error)
        if letter.job_id is not None:
            plan = _Plan(job_id=letter.job_id, claimed=claimed, comes_to=error)
            [move] = self._records.begin(self._beginning(plan))
            self._settle(plan, move)
            self.acknowledge(claimed, letter.job_id)
        else:
            self._claims.ack(claimed.tag)

    def _plan(self, request: Request) -> _Plan | None:
        """None if it was revoked, or cannot be read."""
        claimed: Claimed = request.message.claimed
        recorded = RECORDED in request.message.headers
        plan = partial(_Plan, job_id=request.id, claimed=claimed, recorded=recorded)
        asked = None
        try:
            if request.revoked():
                return None
            asked = unpack(request.request_dict["kwargs"], request.id)
            attempt = self._attempt(request.id, asked, claimed)
            return plan(asked=asked, comes_to=attempt)
        except redis.RedisError:
            raise
        except ImagefleetError as error:
            return plan(asked=asked, comes_to=error)
        except Exception as error:  # anybody can write anything to a queue
            log.error("job %s", request.id, exc_info=error)
            self.bury(claimed, f"cannot be begun: {type(error).__name__}: {error}")
            return None

    def _attempt(self, job_id: str, asked: JobRequest, claimed: Claimed) -> Attempt:
        admit(asked, self._offers)
        if claimed.deliveries > self._max_deliveries:
            raise TooManyDeliveries(
                f"{self._max_deliveries} workers died with this job; it is not tried again"
            )
        return plan_attempt(
            job_id,
            asked,
            self._info,
            deliveries=claimed.deliveries,
            tag=claimed.tag,
            token=claimed.attempt,
        )

    def _beginning(self, plan: _Plan) -> StartRequest:
        started = None
        if isinstance(plan.comes_to, Attempt):
            started = callback(CallbackEvent.STARTED, plan.job_id, plan.comes_to.request)
        return StartRequest(
            job_id=plan.job_id,
            attempt=plan.claimed.attempt,
            deliveries=plan.claimed.deliveries,
            callback=started,
            claim=(self._claims.key, plan.claimed.tag),
        )

    def _settle(self, plan: _Plan, move: TransitionResult) -> Attempt | ImagefleetError | None:
        if move.state is None and plan.asked is not None and not plan.recorded:
            self._records.adopt(plan.job_id, plan.asked)
            [move] = self._records.begin(self._beginning(plan))
        if move.cancel_requested:
            self._records.withdraw(plan.job_id)
            return None
        if move.state in TERMINAL or (move.state is None and plan.recorded):
            return None
        if move.state is not None and not move.happened:
            self._claims.requeue(plan.claimed.tag)  # its message is somebody else's by now
            return None
        if isinstance(plan.comes_to, ImagefleetError):
            self._refuse(plan, plan.comes_to)
        else:
            plan.comes_to.submitted_at = move.submitted_at
            plan.comes_to.retries = move.retries
        return plan.comes_to

    def _refuse(self, plan: _Plan, error: ImagefleetError) -> None:
        log.warning("job %s refused: %s", plan.job_id, error.code)
        if isinstance(error, TooManyDeliveries):
            self._keep(plan.claimed, error)
        [status] = self._records.read([plan.job_id])
        if status is not None:
            reason = JobError(code=error.code, message=str(error))
            event = callback(CallbackEvent.FAILED, plan.job_id, status.request, error=reason)
            self._records.fail(plan.job_id, plan.claimed.attempt, reason, event)

    def _keep(self, claimed: Claimed, error: ImagefleetError) -> DeadLetter:
        return self._dead.add(
            claimed.list_key,
            claimed.message,
            code=error.code,
            reason=str(error),
            deliveries=claimed.deliveries,
        )
