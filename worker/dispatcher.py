"""Between the queue and the devices: claimed messages become Celery requests, requests attempts.

Celery stays the owner of a request's life: it decodes, checks revoked and expired, traces,
stores results, follows chains and acknowledges. Only two things are ours: when messages are taken
(`next_batch`, at the moment the devices are free, or shortly before: `report`) and what happens
between "received" and "sent to the pool" (`accept`: its pictures are put into a device batch).

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

from imagefleet.shared.bulk.messages import unpack_shard
from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME
from imagefleet.worker.devices.batching import BatchTimeout, next_batch, suspect_from
from imagefleet.worker.devices.prefetch import PrefetchTimer
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.work import Slot, slots_of
from imagefleet.worker.jobs.attempt import Attempt, attempts_in
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.start import JobStarter
from imagefleet.worker.queues.celery_message import open_envelope
from imagefleet.worker.queues.claims import Claimed, Claims, QueueGroup

log = logging.getLogger(__name__)

_BREATH_S: Final = 1.0
"""Pause after Redis failed a claim."""

PassOn = Callable[[Request], None]


class Dispatcher:
    """`next_batch` and `report` are the device thread's; the rest may be called from anywhere."""

    def __init__(
        self,
        claims: Claims,
        beginner: JobStarter,
        capacity: int,
        in_flight: InFlight,
        backlog: RowBacklog,
        originals: InputImages,
        *,
        max_deliveries: int,
        max_in_hand: int,
        usual_steps: int,
        linger_s: float = 0.0,
    ) -> None:
        """
        Args:
            capacity: pictures in a device batch.
            originals: fetches what jobs start from.
            in_flight: where the outcome of every claimed job is kept.
            backlog: rows of datasets, for places in batches that no job wants.
            max_in_hand: jobs between claim and acknowledgement, each of which holds a thread.
            usual_steps: the model's own, of jobs that ask for none.
            linger_s: how long a batch that is not full waits for more of its compile key.
        """
        self._claims = claims
        self._beginner = beginner
        self._in_flight = in_flight
        self._backlog = backlog
        self._originals = originals
        self._capacity = capacity
        self._max_deliveries = max_deliveries
        self._max_in_hand = max_in_hand
        self._usual_steps = usual_steps
        self._linger = BatchTimeout(linger_s, capacity)
        self._foresight = PrefetchTimer()
        self._ahead: Future[None] | None = None
        self._helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intake")
        self._groups: Sequence[QueueGroup] = ()
        self._bulk_groups: Sequence[QueueGroup] = ()
        self._strategies: dict[str, Any] = {}
        self._pass_on: PassOn = lambda request: None
        self._claimed: deque[Claimed] = deque()
        self._requests: deque[Request] = deque()
        self._waiting: deque[Slot] = deque()
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may interrupt its holder and come again

    def attach(
        self, groups: Sequence[QueueGroup], strategies: dict[str, Any], pass_on: PassOn
    ) -> None:
        """Where to take messages from and how Celery reads them. Again after a reconnect."""
        self._groups = [group for group in groups if not group.bulk]
        self._bulk_groups = [group for group in groups if group.bulk]
        self._strategies, self._pass_on = strategies, pass_on

    def accept(self, request: Request) -> None:
        """Celery's `on_task_request`: received and not revoked. Wait for the next batch."""
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
                not self._backlog.has_rows() and self._linger.should_wait(self._waiting)
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
        if self._ahead is None and not self._closed and self._foresight.ends_soon(batch, step):
            self._ahead = self._helper.submit(self._look_ahead)

    def _look_ahead(self) -> None:
        with self._lock:
            self._take_in()

    def close(self) -> None:
        """Take nothing more. What is being begun at this moment, `put_down` waits for."""
        self._closed = True

    def put_down(self) -> list[Attempt]:
        """Forget, and return, the attempts of which no picture has reached a device."""
        if self._ahead is not None and not self._closed:
            self._ahead.result()
        with self._lock:  # once closed, what looks ahead is in here or will find nothing to do
            waiting = attempts_in(self._waiting)
            self._waiting.clear()
            waiting += self._originals.put_down()
        return waiting

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
        room = self._max_in_hand - len(self._in_flight)
        suspects = suspect_from(self._max_deliveries)
        if self._suspect_in_hand():
            room = 0  # it has this worker to itself
        want = self._capacity - len(self._waiting)
        if room > 0 and want > 0:
            groups = self._groups_that_fit()
            self._claimed += self._claims.claim(
                groups,
                want,
                most=room,
                suspect_from=suspects,
                aside=self._backlog.tags(),
                usual_steps=self._usual_steps,
                longest=max((slot.spec.steps for slot in self._waiting), default=0),
            )

    def _claim_shard(self) -> None:
        """Beside the jobs, so that there are rows when there are no jobs."""
        if self._bulk_groups and self._backlog.wants_shard() and not self._suspect_in_hand():
            self._claimed += self._claims.claim(self._bulk_groups, 1, most=1)

    def _suspect_in_hand(self) -> bool:
        suspects = suspect_from(self._max_deliveries)
        return any(each.deliveries >= suspects for each in self._in_flight.attempts())

    def _groups_that_fit(self) -> Sequence[QueueGroup]:
        """Those that can share a batch with what waits already."""
        shapes = {str(slot.work.shape) for slot in islice(self._waiting, 1)}
        return [each for each in self._groups if each.name in shapes] or self._groups

    def _receive(self, claimed: Claimed) -> None:
        """Give a claimed message to Celery, unless it is not due or nobody can read it."""
        try:
            message = open_envelope(claimed)
            strategy = self._strategies[message.headers["task"]]
            if message.due is not None and self._claims.delay(claimed.tag, message.due):
                return
            strategy(
                message,
                None,
                lambda *_: self._beginner.acknowledge(claimed, message.headers["id"]),
                lambda *args: self._reject(claimed, requeue=bool(args[2:] and args[2])),
                [],
            )
        except redis.RedisError:
            raise
        except Exception as error:  # anybody can write anything to a queue
            self._beginner.bury(claimed, f"cannot be read: {type(error).__name__}: {error}")

    def _begin(self, requests: Sequence[Request]) -> None:
        """Start the attempts or refuse them; then Celery's pool runs the tasks."""
        for request, outcome in zip(requests, self._beginner.begin(requests), strict=True):
            if self._claims.holds(tag := request.message.claimed.tag):
                if outcome is not None:
                    self._in_flight.add(tag, outcome)
                if isinstance(outcome, Attempt):
                    self._expect_pictures(outcome)
                self._pass_on(request)
            self._requests.popleft()

    def _expect_pictures(self, attempt: Attempt) -> None:
        if attempt.request.image is None:
            self._waiting.extend(slots_of(attempt))
        else:
            self._originals.begin(attempt)

    def _reject(self, claimed: Claimed, *, requeue: bool) -> None:
        if requeue:
            self._claims.requeue(claimed.tag)
        else:
            self._beginner.bury(claimed, "rejected by its task")
