"""Turn claimed messages into Celery requests, requests into attempts, and attempts into batches.

Input: the claims of this worker. Output: the slots of the next device batch. This module generates
no images.

Celery still owns the life of a request: it decodes, checks revoked and expired, traces, stores
results, follows chains and acknowledges. The dispatcher decides two things only: when messages are
claimed (`next_batch`, when the devices are free; `prefetch_if_due`, shortly before), and what
happens between "received" and "sent to the pool" (`Intake`: the images of the job wait for a device
batch).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

import redis

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME
from imagefleet.worker.devices.batching import BatchTimeout, first_suspect_delivery, next_batch
from imagefleet.worker.devices.prefetch_timer import PrefetchTimer
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.slots import Slot, slots_of
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.jobs.attempt import Attempt, attempts_in
from imagefleet.worker.jobs.input_images import InputImages, addresses_of_inputs
from imagefleet.worker.jobs.intake import Intake, SendToPool
from imagefleet.worker.jobs.job_lanes import JobLanes
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.lane_claims import REQUEUE_S

log = logging.getLogger(__name__)

_RETRY_PAUSE_S: Final = 1.0
"""Pause after a failed claim."""
_MAX_CLAIMS: Final = 8
"""Claims in a row, if all before the last one brought jobs that had to be delayed."""


class Dispatcher:
    """The dispatcher claims jobs and shards and gives batches to the device loop.

    Only the device loop's thread calls `next_batch` and `prefetch_if_due`; any thread may call the
    other methods.
    """

    def __init__(
        self,
        lanes: JobLanes,
        capacity: int,
        backlog: RowBacklog,
        input_images: InputImages,
        *,
        max_deliveries: int,
        max_in_flight: int,
        default_steps: int,
        batch_timeout_s: float = 0.0,
    ) -> None:
        """
        Args:
            capacity: slots in a device batch.
            backlog: rows of datasets, for slots that no job needs.
            input_images: fetches the images that jobs start from.
            max_in_flight: jobs between claim and acknowledgement; each of them holds a thread.
            default_steps: denoising steps of jobs that name none.
            batch_timeout_s: seconds that a batch that is not full waits for more jobs of its
                compile key.
        """
        self._lanes = lanes
        self._claims = lanes.claims
        self._intake = Intake(
            lanes, backlog, input_images, max_deliveries, on_started=self._queue_or_fetch
        )
        self.accept: Final = self._intake.accept
        self.settle: Final = self._intake.settle
        self.attended_tags: Final = self._intake.attended_tags
        self._backlog = backlog
        self._input_images = input_images
        self._capacity = capacity
        self._max_deliveries = max_deliveries
        self._max_in_flight = max_in_flight
        self._default_steps = default_steps
        self._batch_timeout = BatchTimeout(batch_timeout_s, capacity)
        self._prefetch_timer = PrefetchTimer()
        self._prefetch: Future[None] | None = None
        self._prefetch_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._groups: Sequence[QueueGroup] = ()
        self._bulk_groups: Sequence[QueueGroup] = ()
        self._waiting: deque[Slot] = deque()
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that holds it

    def attach(
        self, groups: Sequence[QueueGroup], strategies: dict[str, Any], send_to_pool: SendToPool
    ) -> None:
        """Set the queues, Celery's strategies that read their messages, and Celery's pool.

        Called again after each reconnect.
        """
        self._groups = [group for group in groups if not group.bulk]
        self._bulk_groups = [group for group in groups if group.bulk]
        self._intake.attach(strategies, send_to_pool)

    def next_batch(self, free_slots: int | None = None, prefer: Shape | None = None) -> list[Slot]:
        """Return up to `free_slots` slots of one compile key, by default a batch, or none at all.
        `prefer` is the shape to claim, and that of rows, if no claimed job waits."""
        free_slots, prefetched = free_slots or self._capacity, self._prefetch is not None
        if self._prefetch is not None:
            self._prefetch.result()
            self._prefetch = None
        with self._lock:
            ready = prefetched and self._backlog.has_rows()  # the prefetch has just claimed jobs
            if len(self._waiting) < free_slots and not ready:
                self._claim_and_start(free_slots, prefer)
            if self._closed or (
                not self._backlog.has_rows() and self._batch_timeout.should_wait(self._waiting)
            ):
                return []
            batch = next_batch(self._waiting, free_slots, self._max_deliveries)
            if self._suspect_in_flight():
                return batch
            shape = batch[0].work.shape if batch else prefer
            return [*batch, *self._backlog.pop_slots(free_slots - len(batch), shape)]

    def prefetch_if_due(self, batch: Sequence[Slot], step: int) -> None:
        """Claim the next batch if `batch`, which has done `step` steps, ends soon.

        So the devices need not wait for it. Never more than one batch is prefetched.
        """
        if (
            self._prefetch is None
            and not self._closed
            and self._prefetch_timer.should_prefetch(batch, step)
        ):
            self._prefetch = self._prefetch_thread.submit(self._prefetch_batch)

    def _prefetch_batch(self) -> None:
        with self._lock:
            self._claim_and_start(self._capacity)

    def close(self) -> None:
        """Claim no more messages. `release_waiting` waits for jobs that are starting."""
        self._closed = True

    def release_waiting(self) -> list[Attempt]:
        """Remove and return the attempts of which no image has reached the devices.

        Where there are several lanes, jobs that start while one of them hangs are not waited for:
        after `close` call this again.
        """
        if self._prefetch is not None and not self._closed:
            self._prefetch.result()
        # After `close` a prefetch holds the lock already, or will claim nothing.
        if not self._lock.acquire(timeout=-1 if len(self._claims.parts) == 1 else REQUEUE_S):
            return []
        try:
            waiting = attempts_in(self._waiting)
            self._waiting.clear()
            waiting += self._input_images.pop_all()
        finally:
            self._lock.release()
        return waiting

    def _claim_and_start(self, free_slots: int, prefer: Shape | None = None) -> None:
        """Claim messages, let Celery receive them, and start their attempts.

        If Redis is away, messages and requests keep their places and are tried again by the next
        call. Any other error costs only the message that causes it.
        """
        if self._closed:
            return
        started = time.monotonic()
        for attempt in self._input_images.pop_ready():
            self._waiting.extend(slots_of(attempt))
        try:
            for _ in range(_MAX_CLAIMS):
                self._claim(free_slots, prefer)
                self._claim_shard()
                delayed = self._intake.receive()
                if self._intake.start():
                    self._prefetch_timer.record_preparation(time.monotonic() - started)
                if not delayed:
                    break
        except LeaseLost:
            time.sleep(_RETRY_PAUSE_S)  # until the lease keeper acquires a new lease
        except redis.RedisError as error:
            log.warning("claiming failed, trying again in %g s: %s", _RETRY_PAUSE_S, error)
            time.sleep(_RETRY_PAUSE_S)

    def _claim(self, free_slots: int, prefer: Shape | None) -> None:
        if self._suspect_in_flight():
            return  # a suspect runs alone in its worker
        unstarted = self._intake.count_unstarted()
        max_messages = self._max_in_flight - self._lanes.count_in_flight() - unstarted
        wanted_images = free_slots - len(self._waiting) - unstarted
        if max_messages > 0 and wanted_images > 0:
            claimed = self._claims.claim(
                self._compatible_groups(prefer),
                wanted_images,
                max_messages=max_messages,
                suspect_from=first_suspect_delivery(self._max_deliveries),
                ignored_tags=self._backlog.tags(),
                default_steps=self._default_steps,
                batch_steps=max((slot.spec.steps for slot in self._waiting), default=0),
            )
            self._intake.add(claimed, TASK_NAME)

    def _claim_shard(self) -> None:
        """Claim a shard even while jobs wait, so that rows are ready when there are no jobs."""
        if self._bulk_groups and self._backlog.wants_shard() and not self._suspect_in_flight():
            claimed = self._claims.claim(self._bulk_groups, 1, max_messages=1)
            self._intake.add(claimed, BULK_TASK_NAME)

    def _suspect_in_flight(self) -> bool:
        suspects = first_suspect_delivery(self._max_deliveries)
        return any(
            each.deliveries >= suspects and not self._claims.is_away(each.tag)
            for each in self._lanes.attempts()
        )

    def _compatible_groups(self, prefer: Shape | None) -> Sequence[QueueGroup]:
        """Return the queues whose jobs can share a batch with the waiting slots."""
        shapes = {str(slot.work.shape) for slot in islice(self._waiting, 1)} or {str(prefer)}
        return [each for each in self._groups if each.name in shapes] or self._groups

    def _queue_or_fetch(self, attempt: Attempt) -> None:
        if addresses_of_inputs(attempt.request):
            self._input_images.start_fetch(attempt)
        else:
            self._waiting.extend(slots_of(attempt))
