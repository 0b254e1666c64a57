"""Between the queue and the devices: claimed messages become Celery requests, requests attempts.

Celery stays the owner of a request's life: it decodes, checks revoked, expired and ETA, traces,
stores results, follows chains and acknowledges. Only two things are ours: when messages are taken
(`next_batch`, at the moment the devices are free, or shortly before: `report`) and what happens
between "received" and "sent to the pool" (`accept`: its pictures are put into a device batch).

Everything here is known by the tag of its claim, never by the job's id: the same job may be here
twice.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

import redis
from celery.worker.request import Request

from shared.admission import admit
from shared.broker import BULK_TASK_NAME
from shared.bulk.runs import unpack_shard
from shared.deadletters import DeadLetter, DeadLetters
from shared.errors import ImagefleetError, LeaseLost, MessageRejected, TooManyDeliveries
from shared.events import callback
from shared.jobs import TERMINAL, CallbackEvent, JobError, State, unpack
from shared.queues import DEFAULT_MODEL
from shared.records import Beginning, Move, Records
from worker.attempts import Attempt, Slot, attempts_in, offer_of, plan_attempt, slots_of
from worker.batching import Linger, next_batch, suspect_from
from worker.bulk.backlog import Backlog
from worker.claims import Claimed, Claims, QueueGroup
from worker.engine.base import Engine
from worker.envelope import open_envelope
from worker.foresight import Foresight
from worker.originals import Originals

log = logging.getLogger(__name__)

_BREATH_S: Final = 1.0
"""Pause after Redis failed a claim."""

PassOn = Callable[[Request], None]


class Intake:
    """`next_batch` and `report` are the device thread's; the rest may be called from anywhere."""

    def __init__(
        self,
        claims: Claims,
        records: Records,
        dead: DeadLetters,
        engine: Engine,
        backlog: Backlog,
        originals: Originals,
        *,
        max_deliveries: int,
        max_in_hand: int,
        linger_s: float = 0.0,
    ) -> None:
        """
        Args:
            originals: fetches what jobs start from.
            backlog: rows of datasets, for places in batches that no job wants.
            max_in_hand: jobs between claim and acknowledgement, each of which holds a thread.
            linger_s: how long a batch that is not full waits for more of its compile key.
        """
        self._claims = claims
        self._records = records
        self._dead = dead
        self._info = engine.info
        self._backlog = backlog
        self._originals = originals
        offer = offer_of(engine.info)
        self._offers = {offer.model: offer, DEFAULT_MODEL: offer}
        self._capacity = engine.capacity
        self._max_deliveries = max_deliveries
        self._max_in_hand = max_in_hand
        self._linger = Linger(linger_s, engine.capacity)
        self._foresight = Foresight()
        self._ahead: Future[None] | None = None
        self._helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intake")
        self._groups: Sequence[QueueGroup] = ()
        self._bulk_groups: Sequence[QueueGroup] = ()
        self._strategies: dict[str, Any] = {}
        self._pass_on: PassOn = lambda request: None
        self._claimed: deque[Claimed] = deque()
        self._requests: deque[Request] = deque()
        self._scheduled: set[str] = set()
        self._waiting: deque[Slot] = deque()
        self._outcomes: dict[str, Attempt | ImagefleetError] = {}
        self._closed = False
        self._lock = threading.Lock()

    def attach(
        self, groups: Sequence[QueueGroup], strategies: dict[str, Any], pass_on: PassOn
    ) -> None:
        """Where to take messages from and how Celery reads them. Again after a reconnect."""
        self._groups = [group for group in groups if not group.bulk]
        self._bulk_groups = [group for group in groups if group.bulk]
        self._strategies, self._pass_on = strategies, pass_on

    def detach(self) -> None:
        """Celery forgets what it holds for later (ETA) when it reconnects: give that back."""
        for tag in list(self._scheduled):
            self._claims.hand_back(tag)
        self._scheduled.clear()

    def accept(self, request: Request) -> None:
        """Celery's `on_task_request`: received, due and not revoked. Wait for the next batch."""
        self._scheduled.discard(request.message.delivery_tag)
        if request.name == BULK_TASK_NAME:
            unpack_shard(request.request_dict["kwargs"])
            self._backlog.expect(request.message.claimed)
            self._pass_on(request)
        else:
            self._requests.append(request)

    def next_batch(self) -> list[Slot]:
        """What the devices do next: up to a full batch of one compile key, or nothing."""
        looked = self._ahead is not None
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None
        with self._lock:
            ready = looked and self._backlog.has_rows()  # jobs were looked for a moment ago
            if len(self._waiting) < self._capacity and not ready:
                self._take_in()
            if self._closed or (
                not self._backlog.has_rows() and self._linger.goes_on(self._waiting)
            ):
                return []
            batch = next_batch(self._waiting, self._capacity, self._max_deliveries)
            return batch if self._suspect_in_hand() else self._filled(batch)

    def _filled(self, batch: list[Slot]) -> list[Slot]:
        shape = batch[0].work.shape if batch else None
        return [*batch, *self._backlog.take(self._capacity - len(batch), shape)]

    def report(self, batch: Sequence[Slot], step: int) -> None:
        """The devices have done `step` steps of `batch`. Shortly before its end the next one is
        claimed, so that the devices need not wait for that: one batch ahead, and no more."""
        if self._ahead is None and self._foresight.ends_soon(batch, step):
            self._ahead = self._helper.submit(self._look_ahead)

    def _look_ahead(self) -> None:
        with self._lock:
            self._take_in()

    def close(self) -> list[Attempt]:
        """Take nothing more. The attempts of which no picture has reached a device."""
        with self._lock:
            self._closed = True
        return self.put_down()

    def put_down(self) -> list[Attempt]:
        """Forget, and return, the attempts of which no picture has reached a device."""
        ahead = self._ahead
        if ahead is not None:
            ahead.result()
        with self._lock:
            waiting = attempts_in(self._waiting)
            self._waiting.clear()
            waiting += self._originals.put_down()
        return waiting

    def outcome(self, tag: str) -> Attempt | ImagefleetError | None:
        """What became of a request on its way here: an attempt, a refusal, or None if its record
        had ended before."""
        return self._outcomes.get(tag)

    def forget(self, tag: str) -> Attempt | ImagefleetError | None:
        return self._outcomes.pop(tag, None)

    def unfinished(self) -> list[Attempt]:
        found = list(self._outcomes.values())  # pool threads take from it meanwhile
        return [each for each in found if isinstance(each, Attempt)]

    def _take_in(self) -> None:
        """Claim, receive, begin. What raises stays where it is, and is looked at again."""
        if self._closed:
            return
        began = time.monotonic()
        for attempt in self._originals.arrived():
            self._waiting.extend(slots_of(attempt))
        try:
            self._claim()
            self._claim_shard()
            while self._claimed:
                self._receive(self._claimed[0])
                self._claimed.popleft()
            if self._requests:
                self._begin(list(self._requests))
                self._foresight.prepared(time.monotonic() - began)
        except LeaseLost:
            time.sleep(_BREATH_S)  # the keeper joins again
        except redis.RedisError as error:
            log.warning("Redis did not give work: %s", error)
            time.sleep(_BREATH_S)

    def _claim(self) -> None:
        room = self._max_in_hand - len(self._outcomes)
        suspects = suspect_from(self._max_deliveries)
        if self._suspect_in_hand():
            room = 0  # it has this worker to itself
        want = self._capacity - len(self._waiting)
        if room > 0 and want > 0:
            groups = self._groups_that_fit()
            self._claimed += self._claims.claim(
                groups, want, most=room, suspect_from=suspects, aside=self._backlog.tags()
            )

    def _claim_shard(self) -> None:
        """Beside the jobs, so that there are rows when there are no jobs."""
        if self._bulk_groups and self._backlog.wants_shard() and not self._suspect_in_hand():
            self._claimed += self._claims.claim(self._bulk_groups, 1, most=1)

    def _suspect_in_hand(self) -> bool:
        suspects = suspect_from(self._max_deliveries)
        return any(each.deliveries >= suspects for each in self.unfinished())

    def _groups_that_fit(self) -> Sequence[QueueGroup]:
        """Those that can share a batch with what waits already."""
        shapes = {str(slot.work.shape) for slot in islice(self._waiting, 1)}
        return [each for each in self._groups if each.name in shapes] or self._groups

    def _receive(self, claimed: Claimed) -> None:
        """Give a claimed message to Celery, or to the dead letters if nobody can read it."""
        try:
            message = open_envelope(claimed)
            strategy = self._strategies[message.headers["task"]]
            self._scheduled.add(claimed.tag)  # unless Celery passes it on now
            strategy(
                message,
                None,
                lambda *_: self._claims.ack(claimed.tag),
                lambda *args: self._reject(claimed, requeue=bool(args[2:] and args[2])),
                [],
            )
        except redis.RedisError:
            raise
        except Exception as error:  # anybody can write anything to a queue
            self._bury(claimed, f"cannot be read: {type(error).__name__}: {error}")
        if not self._claims.holds(claimed.tag):
            self._scheduled.discard(claimed.tag)

    def _begin(self, requests: Sequence[Request]) -> None:
        """Start the attempts or refuse them; then Celery's pool runs the tasks."""
        plans = [self._plan(request) for request in requests]
        attempts = [plan for plan in plans if isinstance(plan, Attempt)]
        beginnings = [self._beginning(attempt) for attempt in attempts]
        moves = iter(self._records.begin_all(beginnings))
        for request, plan in zip(requests, plans, strict=True):
            if isinstance(plan, Attempt):
                self._settle(request, plan, next(moves))
            elif plan is not None:
                self._refuse(request, plan)
            self._requests.popleft()

    def _plan(self, request: Request) -> Attempt | Exception | None:
        """What it comes to: an attempt, why there can be none, or nothing if it was revoked."""
        claimed: Claimed = request.message.claimed
        try:
            if request.revoked():
                return None
            asked = unpack(request.request_dict["kwargs"])
            admit(asked, self._offers)
            if claimed.deliveries > self._max_deliveries:
                raise TooManyDeliveries(
                    f"{self._max_deliveries} workers died with this job; it is not tried again"
                )
            return plan_attempt(
                request.id, asked, self._info, deliveries=claimed.deliveries, tag=claimed.tag
            )
        except redis.RedisError:
            raise
        except Exception as error:
            return error

    def _refuse(self, request: Request, error: Exception) -> None:
        claimed: Claimed = request.message.claimed
        if not isinstance(error, ImagefleetError):
            log.error("job %s", request.id, exc_info=error)
            self._bury(claimed, f"cannot be begun: {type(error).__name__}: {error}")
            return
        log.warning("job %s refused: %s", request.id, error.code)
        if isinstance(error, TooManyDeliveries):
            self._keep(claimed, error)
        self._fail(request.id, error, claimed.deliveries)
        self._outcomes[claimed.tag] = error
        self._pass_on(request)

    def _beginning(self, attempt: Attempt) -> Beginning:
        return Beginning(
            job_id=attempt.job_id,
            attempt=attempt.token,
            deliveries=attempt.deliveries,
            callback=callback(CallbackEvent.STARTED, attempt.job_id, attempt.request),
            claim=(self._claims.key, attempt.tag),
        )

    def _settle(self, request: Request, attempt: Attempt, move: Move) -> None:
        """The attempt has begun, unless its job has ended or is somebody else's."""
        if move.state is None:  # it came as a plain Celery message
            self._records.adopt(attempt.job_id, attempt.request)
            [move] = self._records.begin_all([self._beginning(attempt)])
        if move.happened:
            self._outcomes[attempt.tag] = attempt
            if attempt.request.image is None:
                self._waiting.extend(slots_of(attempt))
            else:
                self._originals.begin(attempt)
        elif move.state not in TERMINAL:
            self._claims.hand_back(attempt.tag)
            return
        self._pass_on(request)

    def _fail(self, job_id: str, error: ImagefleetError, deliveries: int) -> None:
        """Record a failure before any attempt. A first delivery cannot end a running job: that one
        has another message."""
        [status] = self._records.read([job_id])
        if status is not None:
            leave = [State.QUEUED] if deliveries == 1 else [State.QUEUED, State.RUNNING]
            reason = JobError(code=error.code, message=str(error))
            event = callback(CallbackEvent.FAILED, job_id, status.request, error=reason)
            self._records.fail(job_id, "", reason, event, leave=leave)

    def _reject(self, claimed: Claimed, *, requeue: bool) -> None:
        if requeue:
            self._claims.hand_back(claimed.tag)
        else:
            self._bury(claimed, "rejected by its task")

    def _bury(self, claimed: Claimed, reason: str) -> None:
        log.error("message on %r goes to the dead letters: %s", claimed.list_key, reason)
        error = MessageRejected(reason)
        letter = self._keep(claimed, error)
        if letter.job_id is not None:
            self._fail(letter.job_id, error, claimed.deliveries)
        self._claims.ack(claimed.tag)

    def _keep(self, claimed: Claimed, error: ImagefleetError) -> DeadLetter:
        return self._dead.bury(
            claimed.list_key,
            claimed.message,
            code=error.code,
            reason=str(error),
            deliveries=claimed.deliveries,
        )
