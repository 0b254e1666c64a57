"""A worker without devices: it asks of Redis what a real worker asks, when a real one would.

Claims, attempts, progress, results, acknowledgements, heartbeats and the searches for callbacks and
expired images are those of a worker: the classes are the same. Celery is left out, but not what it
stores. The devices and the image files are left out; their times pass on a timetable.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from celery import Celery

from benchmarks.simulation.counted import Counted, TimedClaims
from benchmarks.simulation.job_lane import MAX_DELIVERIES, SimulatedLane, simulated_lane
from benchmarks.simulation.timetable import Timetable
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.shared.webhooks.outbox_message import DeliveryOutcome, DeliveryVerdict
from imagefleet.worker.celery_app.results import celery_result
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs import progress
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.dispatcher import Dispatcher
from imagefleet.worker.jobs.image_sweeper import sweep_pause_s
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.job_lanes import JobLanes
from imagefleet.worker.jobs.message_end import MessageEnd
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.queues.lease_keeper import RENEWALS_PER_LEASE, LeaseKeeper
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.served_queues import queue_groups
from imagefleet.worker.webhooks.delivery_loop import poll_s as callback_poll_s
from imagefleet.worker.webhooks.receiver_limits import MAX_SENDERS

CAPACITY: Final = 8
STEPS: Final = 50
BATCH_S: Final = 7.0
LEASE_S: Final = float(WorkerSettings.model_fields["lease_s"].default)
PREFETCH_S: Final = 0.15
"""How long before the end of a batch the next one is claimed."""
STORE_S: Final = (0.05, 0.45)
"""How long encoding and uploading an image takes: at least, and at most."""
_IDLE_S: Final = float(WorkerSettings.model_fields["poll_s"].default)
_STALLED_S: Final = 60.0
_MAX_IN_FLIGHT: Final = 32
_DELIVERED: Final = DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, reason="200")
_IMAGE: Final = np.zeros((8, 8, 3), np.uint8)


class _Request:
    """A request of Celery, as the dispatcher and the starter read it."""

    def __init__(self, message: Any, on_ack: Callable[..., None]) -> None:
        self.id: str = message.headers["id"]
        self.name: str = message.headers["task"]
        self.message = message
        self.acknowledge = on_ack

    def revoked(self) -> bool:
        return False


class SimulatedWorker:
    """One host. `stretch` makes everything that takes time take that much longer."""

    def __init__(
        self,
        lanes: Lanes,
        celery: Celery | None,
        engine: FakeEngine,
        namespace: str,
        name: str,
        timetable: Timetable,
        counted: Counted,
        stretch: float,
    ) -> None:
        """
        Args:
            celery: stores the results of tasks. None: it stores none, as in a cluster.
        """
        self._celery, self._timetable, self._counted = celery, timetable, counted
        self._name, self._stretch = name, stretch
        store = MemoryStore()
        self.lanes: Final = [
            simulated_lane(lane, len(lanes), name, engine, store, LEASE_S * stretch)
            for lane in lanes
        ]
        parts = [lane.jobs.claims for lane in self.lanes]
        claims = TimedClaims(parts, [lane.namespace for lane in self.lanes], namespace)
        claims.counted = counted
        self._jobs = JobLanes(claims, [lane.jobs for lane in self.lanes])
        self._dispatcher = Dispatcher(
            self._jobs,
            CAPACITY,
            RowBacklog(CAPACITY),
            InputImages(store, AllowList()),
            max_deliveries=MAX_DELIVERIES,
            max_in_flight=_MAX_IN_FLIGHT,
            default_steps=STEPS,
        )
        self._requests: dict[str, _Request] = {}
        strategies = {TASK_NAME: self._accept, BULK_TASK_NAME: self._accept}
        self._dispatcher.attach(queue_groups(None, engine.info, namespace), strategies, self._send)
        self.keepers: Final = [self._keeper(lane) for lane in self.lanes]
        self._next: list[Slot] = []
        self._claiming = threading.Lock()

    def _keeper(self, lane: SimulatedLane) -> LeaseKeeper:
        """Return the lease keeper of a lane. That of the first stores the status of the worker."""
        return LeaseKeeper(
            lane.jobs.claims,
            lane.records,
            LEASE_S * self._stretch,
            on_lost=lambda: None,
            attended_tags=self._dispatcher.attended_tags,
            report=self if lane is self.lanes[0] else None,
        )

    @property
    def workers(self) -> int:
        """How many workers the fleet has."""
        return self.lanes[0].jobs.claims.lease.workers

    def join(self) -> None:
        """Acquire a lease in every lane."""
        for lane in self.lanes:
            lane.jobs.claims.lease.acquire(self.status() if lane is self.lanes[0] else "")

    def start(self, at: float, fleet: int) -> None:
        """Take work from `at` (monotonic) on, in a fleet of so many hosts."""
        self._timetable.add(at, partial(self._begin_batch, at))
        for lane, keeper in zip(self.lanes, self.keepers, strict=True):
            for seconds, action in self.upkeep(lane, keeper, fleet):
                interval_s = seconds * self._stretch
                first = at + random.uniform(0, interval_s)
                self._timetable.repeat(first, interval_s, action)

    def upkeep(
        self, lane: SimulatedLane, keeper: LeaseKeeper, fleet: int
    ) -> list[tuple[float, Callable[[], object]]]:
        """Return what a worker does again and again in a lane, with the seconds in between."""
        return [
            (LEASE_S / RENEWALS_PER_LEASE, keeper.heartbeat),
            (callback_poll_s(fleet, len(self.lanes)), partial(self._look_for_callbacks, lane)),
            (sweep_pause_s(fleet, len(self.lanes)), lane.sweeper.sweep),
            (_STALLED_S, partial(lane.runs.stalled.find, _STALLED_S)),
        ]

    def stop(self) -> None:
        """Give back what it holds."""
        self._jobs.claims.release_all()

    def _begin_batch(self, free_at: float) -> None:
        """Begin the batch that was prefetched. The devices have been free since `free_at`.

        A batch that was claimed in time begins then, also where this process is late.
        """
        began = free_at if self._next else math.inf
        self._prefetch()
        batch, self._next = self._next, []
        if not batch:
            again = time.monotonic() + _IDLE_S * self._stretch
            self._timetable.add(again, partial(self._begin_batch, again))
            return
        began = min(began, time.monotonic())
        ends = began + BATCH_S * self._stretch
        self._timetable.add(ends - PREFETCH_S * self._stretch, self._prefetch)
        self._timetable.add(ends, partial(self._end_batch, batch, ends))
        self._report(batch, began, ends)

    def _report(self, batch: list[Slot], began: float, ends: float) -> None:
        now = time.monotonic()
        done = max(0.0, (now - began) / (ends - began))
        if done < 1.0:
            self.report_steps(
                batch,
                int(done * STEPS),
                progress.cancel_check_interval_s(self.workers) * self._stretch,
                progress.record_interval_s(self.workers) * self._stretch,
            )
        if (then := now + progress.MIN_INTERVAL_S * self._stretch) < ends:
            self._timetable.add(then, partial(self._report, batch, began, ends))

    def report_steps(
        self, batch: Sequence[Slot], step: int, check_after_s: float, record_after_s: float
    ) -> None:
        """Report that a batch has done so many steps, in the lanes of its jobs."""
        by_lane: dict[int, dict[Slot, int]] = {}
        for slot in batch:
            assert isinstance(slot.work, Attempt)
            by_lane.setdefault(self._jobs.claims.number_of(slot.work.tag), {})[slot] = step
        for number, steps in by_lane.items():
            self._jobs[number].progress.record_due(steps, check_after_s, record_after_s)

    def claim_batch(self) -> list[Slot]:
        """Claim the jobs of a batch, and start them."""
        return self._dispatcher.next_batch()

    def _prefetch(self) -> None:
        with self._claiming:
            self._next = self._next or self.claim_batch()

    def _end_batch(self, batch: list[Slot], ended: float) -> None:
        self._counted.add_images(ended, len(batch))
        for attempt in self.deliver(batch):
            stored = time.monotonic() + random.uniform(*STORE_S) * self._stretch
            self._timetable.add(stored, partial(self.finish, attempt))
        self._begin_batch(ended)

    def deliver(self, batch: Sequence[Slot]) -> list[Attempt]:
        """Give the attempts of a batch their images, and return them."""
        attempts = []
        for slot in batch:
            attempt = slot.work
            assert isinstance(attempt, Attempt)
            attempt.device_s = BATCH_S * self._stretch
            attempt.deliver(slot.index, _IMAGE)
            attempts.append(attempt)
        return attempts

    def finish(self, attempt: Attempt) -> None:
        """Do what Celery's pool and tracer do when a task ends."""
        lane, celery = self._jobs.of(attempt.tag), self._celery
        store = celery and partial(celery_result, celery.backend, attempt.job_id)
        end = MessageEnd(claims=lane.claims, tag=attempt.tag, store=store)
        result = lane.executor.execute(attempt.job_id, attempt.tag, end).model_dump(mode="json")
        if not end.happened and celery is not None:
            celery.backend.mark_as_done(attempt.job_id, result)
        self._requests.pop(attempt.tag).acknowledge()
        self._dispatcher.settle(attempt.tag)

    def _accept(self, message: Any, _body: Any, on_ack: Callable[..., None], *_: Any) -> None:
        request = _Request(message, on_ack)
        self._requests[message.claimed.tag] = request
        self._dispatcher.accept(request)  # it reads no more than this

    def _send(self, request: Any) -> None:
        """Do nothing: there is no pool, and the timetable knows when the job ends."""

    def on_status_stored(self, *, drain_requested: bool) -> None:
        """Do nothing: no simulated host drains."""

    def status(self) -> str:
        """Return what it says of itself."""
        return (
            WorkerStatus(
                worker=self._name,
                state=WorkerState.READY,
                version="0.0.0",
                model="fake",
                shapes=("512x512",),
                devices="8 x TPU v5 lite",
                capacity=CAPACITY,
                claims=len(self._jobs.claims.held_tags()),
                images=self._counted.images,
                step_s_by_shape={"512x512": 0.14},
                bytes_per_pixel={"png": 1.5},
                busy=1.0,
                started_at=time.time(),
            )
        ).dump()

    def _look_for_callbacks(self, lane: SimulatedLane) -> None:
        messages = lane.outbox.claim(
            MAX_SENDERS, 60.0, max_slow=MAX_SENDERS, max_unproven=MAX_SENDERS
        )
        lane.outbox.answered_lately(message.receiver for message in messages)
        for message in messages:
            lane.outbox.mark_delivered(replace(message, attempts=1), _DELIVERED)
