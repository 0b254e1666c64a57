"""Name the parts of a worker process, and the functions with which they reach the whole of it.

`bootstrap` builds the parts. Nothing here connects anything.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imagefleet.shared.jobs.offers import OfferRegistry
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.bulk.recover_runs import RunRecovery
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.devices.make_loop import Loop
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.devices.watchdog import Watchdog
from imagefleet.worker.engine.contract.interface import Engine
from imagefleet.worker.jobs.dispatcher import Dispatcher
from imagefleet.worker.jobs.image_sweeper import ImageSweeper
from imagefleet.worker.jobs.job_lanes import JobLanes
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from imagefleet.worker.startup.join_fleet import FleetJoin
from imagefleet.worker.startup.status_reporter import StatusReporter
from imagefleet.worker.webhooks.lane_delivery import LaneDelivery


@dataclass(frozen=True, kw_only=True)
class ProcessHooks:
    """Functions that the parts call when the whole process has to act."""

    on_lease_lost: Callable[[int], None]
    """It is called with the number of a lane in which the lease expired: other workers have the
    jobs of this lane now."""
    on_hang: Callable[[int], None]
    """It is called with the number of a stream whose devices made no step for `watchdog_s`."""
    on_devices_failed: Callable[[Sequence[Slot], Sequence[Slot], str], None]
    """It is called with the slots on which the devices failed, the slots that only waited, and why
    the devices count as failing."""
    on_drain_requested: Callable[[], None]
    """Called when an operator asks this worker to drain."""


@dataclass(frozen=True, kw_only=True)
class LaneUpkeep:
    """What keeps up one lane, each in a thread of its own: a lane that does not answer stops no
    other."""

    lease_keeper: LeaseKeeper
    progress: ProgressReporter
    run_recovery: RunRecovery
    image_sweeper: ImageSweeper

    def start(self) -> None:
        """Start all threads."""
        self.lease_keeper.start()
        self.progress.start()
        self.run_recovery.start()
        self.image_sweeper.start()

    def stop(self, timeout_s: float) -> None:
        """Stop all threads, and wait up to `timeout_s` for the lease keeper."""
        self.run_recovery.stop()
        self.image_sweeper.stop()
        self.progress.stop()
        self.lease_keeper.stop(timeout_s)


def stop_upkeep(lanes: Sequence[LaneUpkeep], timeout_s: float = 3.0) -> None:
    """Stop what keeps up the lanes, and wait up to `timeout_s` for all lease keepers together."""
    deadline = time.monotonic() + timeout_s
    for lane in lanes:
        lane.stop(0.0)
    for lane in lanes:
        lane.stop(max(0.0, deadline - time.monotonic()))


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """Everything that a running worker process owns."""

    engine: Engine
    jobs: JobLanes
    backlog: RowBacklog
    dispatcher: Dispatcher
    shards: Sequence[ShardContext]
    """They are in the order of the lanes."""
    device_loop: Loop
    watchdog: Watchdog
    upkeep: Sequence[LaneUpkeep]
    """It is in the order of the lanes."""
    offers: OfferRegistry
    delivery: LaneDelivery
    outboxes: Sequence[Outbox]
    """Of the whole fleet, by a client that does not wait for Redis."""
    status: StatusReporter
    fleet: FleetJoin
