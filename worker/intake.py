"""Between the queue and the devices: claimed messages become Celery requests, requests attempts.

Celery stays the owner of a request's life: it decodes, checks revoked, expired and ETA, traces,
stores results, follows chains and acknowledges. Only two things are ours: when messages are taken
(`next_batch`, at the moment the devices are free) and what happens between "received" and "sent to
the pool" (`accept`: its pictures are put into a device batch).
"""

import base64
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from celery.worker.request import Request
from kombu.message import Message

from shared.admission import admit
from shared.errors import ImagefleetError, LeaseLost, MessageRejected, TooManyDeliveries
from shared.events import callback
from shared.jobs import CallbackEvent, JobError, JobRequest, unpack
from shared.records import Records
from worker.attempts import Attempt, Slot, attempts_in, offer_of, plan_attempt, slots_of
from worker.batching import next_batch
from worker.claims import Claimed, Claims, QueueGroup
from worker.deadletters import DeadLetters
from worker.engine.base import Engine

log = logging.getLogger(__name__)

_BREATH_S: Final = 1.0
"""Pause after Redis failed a claim."""

PassOn = Callable[[Request], None]


class Intake:
    """`next_batch` belongs to the device thread; the rest may be called from anywhere."""

    def __init__(
        self,
        claims: Claims,
        records: Records,
        dead: DeadLetters,
        engine: Engine,
        max_deliveries: int,
    ) -> None:
        self._claims = claims
        self._records = records
        self._dead = dead
        self._info = engine.info
        self._capacity = engine.capacity
        self._max_deliveries = max_deliveries
        self._groups: Sequence[QueueGroup] = ()
        self._strategies: dict[str, Any] = {}
        self._pass_on: PassOn = lambda request: None
        self._claimed: deque[Claimed] = deque()
        self._requests: deque[Request] = deque()
        self._waiting: deque[Slot] = deque()
        self._outcomes: dict[str, Attempt | ImagefleetError] = {}

    def attach(
        self, groups: Sequence[QueueGroup], strategies: dict[str, Any], pass_on: PassOn
    ) -> None:
        """Where to take messages from and how Celery reads them. Again after a reconnect."""
        self._groups, self._strategies, self._pass_on = groups, strategies, pass_on

    def accept(self, request: Request) -> None:
        """Celery's `on_task_request`: received, due and not revoked. Wait for the next batch."""
        self._requests.append(request)

    def next_batch(self) -> list[Slot]:
        """What the devices do next: up to a full batch of one compile key, or nothing."""
        want = self._capacity - len(self._waiting)
        try:
            if want > 0:
                self._claimed.extend(self._claims.claim(self._groups, want))
            # What raises here stays where it is, and is looked at again next time.
            while self._claimed:
                self._receive(self._claimed[0])
                self._claimed.popleft()
            while self._requests:
                self._begin(self._requests[0])
                self._requests.popleft()
        except LeaseLost:
            time.sleep(_BREATH_S)  # the keeper joins again
        except redis.RedisError as error:
            log.warning("Redis did not give work: %s", error)
            time.sleep(_BREATH_S)
        return next_batch(self._waiting, self._capacity, self._max_deliveries)

    def outcome(self, job_id: str) -> Attempt | ImagefleetError | None:
        """What became of a request on its way here: an attempt, a refusal, or None if its record
        had ended before."""
        return self._outcomes.get(job_id)

    def forget(self, job_id: str) -> None:
        self._outcomes.pop(job_id, None)

    def unfinished(self) -> list[Attempt]:
        return [found for found in self._outcomes.values() if isinstance(found, Attempt)]

    def waiting(self) -> list[Attempt]:
        """Attempts of which no picture has reached a device."""
        return attempts_in(self._waiting)

    def _receive(self, claimed: Claimed) -> None:
        """Give a claimed message to Celery, or to the dead letters if nobody can read it."""
        try:
            message = _message(claimed)
            strategy = self._strategies[message.headers["task"]]
        except (ValueError, TypeError, KeyError) as error:
            self._bury(claimed, f"not a message of ours: {type(error).__name__}: {error}")
            return
        try:
            strategy(
                message,
                None,
                lambda *_: self._claims.ack(claimed.tag),
                lambda *args: self._reject(claimed, requeue=bool(args[2:] and args[2])),
                [],
            )
        except Exception as error:  # Celery raises many kinds for a body it cannot read
            self._bury(claimed, f"Celery cannot read it: {type(error).__name__}: {error}")

    def _begin(self, request: Request) -> None:
        """Refuse, or start the attempt; either way Celery's pool then runs the task."""
        if request.revoked():
            return
        deliveries = request.message.delivery_info.get("deliveries", 1)
        try:
            attempt = self._attempt(request, deliveries)
        except ImagefleetError as error:
            log.warning("job %s refused: %s", request.id, error)
            reason = JobError(code=error.code, message=str(error))
            self._records.fail(request.id, "", reason, self._failed(request, reason))
            self._outcomes[request.id] = error
        else:
            if attempt is not None:
                self._outcomes[request.id] = attempt
                self._waiting.extend(slots_of(attempt))
        self._pass_on(request)

    def _attempt(self, request: Request, deliveries: int) -> Attempt | None:
        asked = unpack(request.request_dict["kwargs"])
        offer = offer_of(self._info)
        admit(asked, {offer.model: offer, "default": offer})
        if deliveries > self._max_deliveries:
            raise TooManyDeliveries(
                f"{self._max_deliveries} workers died with this job; it is not tried again"
            )
        attempt = plan_attempt(
            request.id,
            asked,
            self._info,
            deliveries=deliveries,
            tag=request.message.delivery_tag,
        )
        event = callback(CallbackEvent.STARTED, request.id, asked)
        move = self._records.begin(request.id, attempt.token, deliveries, event)
        if not move.happened and move.state is None:
            self._records.adopt(request.id, asked)
            move = self._records.begin(request.id, attempt.token, deliveries, event)
        return attempt if move.happened else None

    def _failed(self, request: Request, reason: JobError) -> Any:
        try:
            asked: JobRequest = unpack(request.request_dict["kwargs"])
        except ImagefleetError:
            return None
        return callback(CallbackEvent.FAILED, request.id, asked, error=reason)

    def _reject(self, claimed: Claimed, *, requeue: bool) -> None:
        if requeue:
            self._claims.hand_back(claimed.tag)
        else:
            self._bury(claimed, "rejected by its task")

    def _bury(self, claimed: Claimed, reason: str) -> None:
        log.error("message on %r goes to the dead letters: %s", claimed.list_key, reason)
        job_id = self._dead.bury(claimed.list_key, claimed.message, reason)
        if job_id is not None:
            error = MessageRejected(reason)
            self._records.fail(job_id, "", JobError(code=error.code, message=reason), None)
        self._claims.ack(claimed.tag)


def _message(claimed: Claimed) -> Message:
    """Open kombu's Redis envelope. Raises ValueError, TypeError or KeyError if it is none."""
    envelope = json.loads(claimed.message)
    properties, body = envelope["properties"], envelope["body"]
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if not isinstance(envelope["headers"], dict) or not envelope["headers"].get("id"):
        raise ValueError("no headers with a task id")
    return Message(
        body=body,
        delivery_tag=claimed.tag,
        content_type=envelope["content-type"],
        content_encoding=envelope["content-encoding"],
        headers=envelope["headers"],
        properties=properties,
        delivery_info={
            **properties["delivery_info"],
            "redelivered": claimed.deliveries > 1,
            "deliveries": claimed.deliveries,
        },
        accept={"application/json"},
    )
