"""Start the jobs of requests that a worker received.

Input: requests. Output: for each an attempt, or why there is none. Acquire the job record
(compare-and-set) before deciding the outcome. So a refusal ends only a job that no other attempt
holds, and never one that has ended. The starter depends on neither batches nor devices nor Celery
and its pool.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from imagefleet.shared.errors import (
    ImagefleetError,
    JobExpired,
    MessageRejected,
    TooManyDeliveries,
)
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.celery_message import trace_parent_of
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.message_arguments import stored_text
from imagefleet.shared.jobs.message_origin import sha1_of
from imagefleet.shared.jobs.model import TERMINAL, CallbackEvent
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult
from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.contract.interface import ModelInfo
from imagefleet.worker.jobs.attempt import Attempt, offer_of, plan_attempt
from imagefleet.worker.jobs.earlier_failures import gave_up_after
from imagefleet.worker.jobs.left_jobs import LeftJobs
from imagefleet.worker.jobs.other_workers import OtherWorkers
from imagefleet.worker.jobs.planned_start import PlannedStart, ReceivedRequest
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.process.log_format import log_fields
from imagefleet.worker.queues.claim_types import Claimed
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)


class JobStarter:
    """Starts the jobs that one worker claimed."""

    def __init__(
        self,
        claims: Claims,
        records: JobRecords,
        refuser: Refuser,
        info: ModelInfo,
        max_deliveries: int,
        expiry: ImageExpiry | None = None,
        others: OtherWorkers | None = None,
    ) -> None:
        """
        Args:
            expiry: None if images are never deleted, as in a fake fleet.
            others: the other workers. None: there are none.
        """
        self._claims = claims
        self._records = records
        self.refuser: Final = refuser
        self._info = info
        offer = offer_of(info)
        self._offers = {offer.model: offer, DEFAULT_MODEL: offer}
        self.add_ons: Final = info.add_ons
        """Those that jobs may use in this worker."""
        self.reads_weights: Final = offer.prompt_chunks > 0
        """Whether jobs may have `prompt_weighting` in this worker."""
        self._max_deliveries = max_deliveries
        self._expiry = expiry
        self._others = others
        self._left = LeftJobs(claims)

    def start(self, requests: Sequence[ReceivedRequest]) -> list[Attempt | ImagefleetError | None]:
        """Start the job of each request. Return its attempt, the reason why it was refused, or None
        if there is nothing to do for it.

        The claim of a request may be released already (`Claims.holds`); it needs nothing more.
        """
        plans = [self._plan_start(request) for request in requests]
        transitions = iter(self._start_records([plan for plan in plans if plan is not None]))
        outcomes = [
            None if plan is None else self._apply_transition(plan, next(transitions))
            for plan in plans
        ]
        self._left.end_claim(brought_others=any(isinstance(each, Attempt) for each in outcomes))
        return outcomes

    def _start_records(self, plans: Sequence[PlannedStart]) -> list[TransitionResult | Exception]:
        """Start the records of all plans. Return an error for each record that cannot start."""
        try:
            return list(self._records.start(*map(self._start_request, plans)))
        except Exception as error:
            if is_outage(error):
                raise
            if len(plans) == 1:
                return [error]
        return [each for plan in plans for each in self._start_records([plan])]

    def _plan_start(self, request: ReceivedRequest) -> PlannedStart | None:
        """Return None if the request was revoked, or if its message breaks this worker."""
        claimed, origin = request.message.claimed, request.message.origin
        received = request.message.job_request
        try:
            if request.revoked():
                return None
            outcome = self._plan_outcome(origin.job_id, received, claimed)
            return PlannedStart(claimed=claimed, origin=origin, received=received, outcome=outcome)
        except Exception as error:  # any client can write anything to a queue
            if is_outage(error):
                raise
            with log_fields(job_id=origin.job_id, claim=claimed.tag):
                self._reject(claimed, error)
            return None

    def _plan_outcome(
        self, job_id: str, received: JobRequest | ImagefleetError, claimed: Claimed
    ) -> Attempt | ImagefleetError:
        if claimed.deliveries > self._max_deliveries:
            deaths = f"{counted(self._max_deliveries, 'worker')} died with this job"
            return TooManyDeliveries(f"{deaths}; it is not tried again")
        if isinstance(received, ImagefleetError):
            return received
        try:
            return self._plan_attempt(job_id, received, claimed)
        except ImagefleetError as error:
            return error

    def _reject(self, claimed: Claimed, error: Exception) -> None:
        log.error("a message cannot be started", exc_info=error)
        reason = f"cannot be started: {type(error).__name__}: {error}"
        self.refuser.reject_message(claimed, MessageRejected(reason))

    def _plan_attempt(self, job_id: str, request: JobRequest, claimed: Claimed) -> Attempt:
        admit(request, self._offers)
        attempt = plan_attempt(
            job_id,
            request,
            self._info,
            deliveries=claimed.deliveries,
            tag=claimed.tag,
            token=claimed.attempt,
        )
        attempt.trace_parent = trace_parent_of(claimed.message)
        if self._expiry is not None:
            attempt.keep = self._expiry.keep_time(request)
        return attempt

    def _start_request(self, plan: PlannedStart) -> StartRequest:
        started = ttl_s = keep = None
        host = ""
        if isinstance(plan.outcome, Attempt):
            keep = plan.outcome.keep
            started = build_callback(
                CallbackEvent.STARTED,
                plan.job_id,
                plan.outcome.request,
                worker=self._claims.worker,
                trace_parent=plan.outcome.trace_parent,
            )
            ttl_s = plan.outcome.request.ttl
            host = "" if self._others is None else host_of(self._claims.worker)
        # A record that this worker created for the message has this request.
        request_sha1 = plan.origin.request_sha1 or (
            "" if plan.recorded else sha1_of(stored_text(plan.request))
        )
        return StartRequest(
            job_id=plan.job_id,
            attempt=plan.claimed.attempt,
            deliveries=plan.claimed.deliveries,
            callback=started,
            claim=(self._claims.key, plan.claimed.tag),
            ttl_s=ttl_s,
            request_sha1=request_sha1,
            keep=keep,
            host=host,
        )

    def _apply_transition(
        self, plan: PlannedStart, transition: TransitionResult | Exception
    ) -> Attempt | ImagefleetError | None:
        """Return the outcome of the message, given the answer of its job record."""
        with log_fields(job_id=plan.job_id, claim=plan.claimed.tag):
            try:
                if isinstance(transition, Exception):
                    raise transition
                return self._decide(plan, transition)
            except Exception as error:
                if is_outage(error):
                    raise
                self._reject(plan.claimed, error)
                return None

    def _decide(
        self, plan: PlannedStart, transition: TransitionResult, start: StartRequest | None = None
    ) -> Attempt | ImagefleetError | None:
        """Return the outcome of a message.

        Args:
            start: the request that had this answer, if it is not the one that the plan gives.
        """
        if transition.state is None and not plan.recorded:
            transition = self._create_and_start(plan)
        if transition.superseded:
            return self._decide_superseded(plan)
        if transition.failed_here and isinstance(plan.outcome, Attempt):
            start = start or self._start_request(plan)
            return self._leave_or_start(plan, plan.outcome, transition, start)
        if transition.expired and isinstance(plan.outcome, Attempt):
            return self._expire(plan, plan.outcome.request)
        if transition.cancel_requested:
            self._records.cancel_unconditionally(plan.job_id, plan.origin.request_sha1)
            return None
        if transition.state is None:
            self._records.read([plan.job_id])  # raises an error for a record without a valid state
        if transition.state in TERMINAL or transition.state is None:
            return None
        if not transition.happened:
            self._claims.requeue(plan.claimed.tag)  # by now another worker holds the message
            return None
        return self._note_started(plan, transition)

    def _note_started(
        self, plan: PlannedStart, transition: TransitionResult
    ) -> Attempt | ImagefleetError:
        """Return the outcome of a message whose job has started. Fail it if it is refused."""
        outcome = plan.outcome
        if isinstance(outcome, TooManyDeliveries):
            [status] = self._records.read([plan.job_id])
            outcome = gave_up_after(outcome, () if status is None else status.failures)
        if isinstance(outcome, ImagefleetError):
            self.refuser.fail_started(plan.job_id, plan.claimed, outcome)
        else:
            outcome.submitted_at = transition.submitted_at
            outcome.retries, outcome.failures = transition.retries, transition.failures
        return outcome

    def _leave_or_start(
        self,
        plan: PlannedStart,
        attempt: Attempt,
        transition: TransitionResult,
        start: StartRequest,
    ) -> Attempt | ImagefleetError | None:
        """Leave a job that failed on this host to another worker, or start it if there is none."""
        if self._others and self._others.should_have(attempt, transition.failures):
            record = self.refuser.record_key(plan.job_id)
            self._left.leave(plan.claimed.tag, record, start.request_sha1)
            return None
        anywhere = replace(start, host="")
        [transition] = self._records.start(anywhere)
        return self._decide(plan, transition, anywhere)

    def _decide_superseded(self, plan: PlannedStart) -> Attempt | ImagefleetError | None:
        """Return the outcome of a message whose record has another request.

        A message of plain Celery may have a record that another release has spelled otherwise.
        """
        if plan.recorded:
            self.refuser.drop_superseded(plan.claimed, plan.job_id)
            return None
        stored = self._records.stored_request(plan.job_id)
        if stored is None:  # it was deleted meanwhile
            self._claims.requeue(plan.claimed.tag)
            return None
        if plan.origin.matches(stored):
            start = replace(self._start_request(plan), request_sha1=sha1_of(stored))
            [transition] = self._records.start(start)
            if not transition.superseded:
                return self._decide(plan, transition, start)
        self.refuser.reject_foreign(plan.claimed, plan.job_id)
        return None

    def _expire(self, plan: PlannedStart, request: JobRequest) -> Attempt | ImagefleetError | None:
        """Fail a job that was not started in time. Return the outcome of its message."""
        error = JobExpired(f"no worker started the job within ttl={request.ttl:g} s")
        transition = self.refuser.fail_queued(plan.job_id, request, error)
        return error if transition.happened else self._decide(plan, transition)

    def _create_and_start(self, plan: PlannedStart) -> TransitionResult:
        """Create the record of a message of plain Celery, and start it."""
        self._records.create_if_missing(plan.job_id, plan.request)
        [transition] = self._records.start(self._start_request(plan))
        return transition
