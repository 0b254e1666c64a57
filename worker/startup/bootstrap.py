"""Build the parts of a worker process and connect them.

Input: the settings. Output: `WorkerParts`. Nothing here claims work: see `lifecycle`.
"""

import logging
import os
import platform
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from imagefleet.shared.jobs.offers import OfferRegistry, OfferRenewal
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.worker_status import WorkerRegistry
from imagefleet.shared.process.garbage import collecting_later
from imagefleet.shared.redis_client.lanes import Lane, is_in_lane
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.bulk.recover_runs import RunRecovery
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.make_loop import Loop, make_loop
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.watchdog import Watchdog
from imagefleet.worker.engine.contract.interface import Stream
from imagefleet.worker.jobs.dispatcher import Dispatcher
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.image_sweeper import ImageSweeper
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.job_lanes import JobLane, JobLanes
from imagefleet.worker.jobs.other_workers import OtherWorkers, count_succeeded
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.process.log_format import name_worker
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.join_fleet import FleetJoin, member_of
from imagefleet.worker.startup.lane_parts import (
    image_expiry,
    make_claims,
    make_dead_letters,
    on_lease_lost,
)
from imagefleet.worker.startup.load_model import load_model
from imagefleet.worker.startup.redis_clients import connect_clients
from imagefleet.worker.startup.start_delivery import start_delivery
from imagefleet.worker.startup.status_reporter import StatusReporter
from imagefleet.worker.startup.stores import Stores, check_image_store
from imagefleet.worker.startup.worker_parts import LaneUpkeep, ProcessHooks, WorkerParts

log = logging.getLogger(__name__)


def build(
    settings: WorkerSettings,
    stores: Stores,
    hooks: ProcessHooks,
    queues: Sequence[str] | None = None,
) -> WorkerParts:
    """Check Redis and storage, load and compile the model, and build all parts.

    Only the threads that deliver callbacks are started: they need no model.

    Args:
        queues: those that this worker was told to serve. None: all of its model.

    Raises:
        ImagefleetError: it says which part is wrong and what to do.
    """
    with collecting_later():
        return _Builder(settings, stores, hooks, queues).build()


class _Builder:
    """The builder makes the parts of one worker and holds what several of them share."""

    def __init__(
        self,
        settings: WorkerSettings,
        stores: Stores,
        hooks: ProcessHooks,
        queues: Sequence[str] | None,
    ) -> None:
        self._settings, self._stores, self._hooks = settings, stores, hooks
        self._queues = queues
        self._name = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        name_worker(self._name)

    def build(self) -> WorkerParts:
        self._no_retry, self._retrying = connect_clients(self._settings)
        check_image_store(self._stores.images, self._settings)
        self._claims = make_claims(self._settings, self._name, self._no_retry, self._retrying)
        self._delivery = start_delivery(self._retrying, self._settings, self._count_workers)
        self._engine = load_model(self._settings, self._stores.shared)
        self._streams = self._warm()
        self._backlog = RowBacklog(self._engine.capacity)
        self._health = HealthCheck(
            self._engine, self._stores.images, self._settings.quarantine_s, self._streams
        )
        self._input_images = self._build_input_images()
        self._jobs = JobLanes(self._claims, [self._build_job_lane(each) for each in self._retrying])
        self._dispatcher = self._build_dispatcher()
        device_loop = self._build_device_loop()
        self._status = self._build_status_reporter()
        shards = self._build_shard_contexts()
        return WorkerParts(
            engine=self._engine,
            jobs=self._jobs,
            backlog=self._backlog,
            dispatcher=self._dispatcher,
            shards=shards,
            device_loop=device_loop,
            watchdog=Watchdog(
                device_loop.progress_counts, self._hooks.on_hang, self._settings.watchdog_s
            ),
            upkeep=[
                self._build_upkeep(lane, context)
                for lane, context in zip(self._retrying, shards, strict=True)
            ],
            offers=OfferRegistry(self._retrying.first.client, self._retrying.first.namespace),
            delivery=self._delivery,
            outboxes=[Outbox(lane.client, lane.namespace) for lane in self._no_retry],
            status=self._status,
            fleet=FleetJoin.build(
                self._retrying, self._no_retry, self._settings, self._name, self._status
            ),
        )

    def _warm(self) -> Sequence[Stream]:
        """Compile the engine for the policy. Return its streams, if it runs streams."""
        if self._settings.batching == "continuous":
            return self._engine.open_streams()
        self._engine.warm()
        return ()

    def _job_records(self, lane: Lane) -> JobRecords:
        wake = partial(self._delivery.wake, lane.number)
        return JobRecords(lane.client, lane.namespace, self._settings.retention_s, wake)

    def _count_workers(self, lane: int = 0) -> int:
        """Return how many workers had a lease at the latest heartbeat, 0 before the first."""
        return self._claims.parts[lane].lease.workers

    def _build_shard_contexts(self) -> list[ShardContext]:
        """Return a context for each lane. They share all that is not of a lane."""
        first = ShardContext.build(
            self._settings,
            self._retrying.first,
            claims=self._claims.parts[0],
            backlog=self._backlog,
            engine=self._engine,
            destinations=self._stores.destinations,
            fetch_image=self._input_images.fetch,
        )
        others = list(zip(self._retrying, self._claims.parts, strict=True))[1:]
        kept_s = self._settings.retention_s
        return [first, *(first.in_lane(lane, claims, kept_s) for lane, claims in others)]

    def _build_input_images(self) -> InputImages:
        settings, info = self._settings, self._engine.info
        return InputImages(
            self._stores.images,
            AllowList.parse(settings.callback_allow),
            default_strengths=info.image_use.default_strengths,
            image_limits=info.image_use.limits,
            latents=info.latents,
            max_jobs=min(settings.input_image_jobs, max(1, settings.post_threads // 2)),
            max_fetches=settings.input_image_fetches,
        )

    def _build_job_lane(self, lane: Lane) -> JobLane:
        claims, records = self._claims.parts[lane.number], self._job_records(lane)
        in_flight = InFlight()
        dead_letters = make_dead_letters(lane, self._retrying, self._settings)
        return JobLane(
            claims=claims,
            starter=self._build_starter(lane.number),
            in_flight=in_flight,
            executor=JobExecutor(
                in_flight,
                records,
                claims,
                self._build_finisher(records, in_flight),
                RetryPolicy(records, claims, dead_letters, self._settings.max_retries),
                self._health,
            ),
            progress=ProgressReporter(records, partial(self._count_workers, lane.number)),
        )

    def _build_starter(self, number: int) -> JobStarter:
        """Return what starts the jobs of a lane. It waits for Redis only where there is no other
        lane, because one thread starts the jobs of all."""
        settings, info = self._settings, self._engine.info
        lanes = self._retrying if len(self._retrying) == 1 else self._no_retry
        first, lane, claims = lanes.first, lanes[number], self._claims.parts[number]
        records, dead_letters = self._job_records(lane), make_dead_letters(lane, lanes, settings)
        return JobStarter(
            claims,
            records,
            Refuser(claims, records, dead_letters, partial(is_in_lane, number, len(lanes))),
            info,
            settings.max_deliveries,
            image_expiry(lane, settings, self._stores),
            OtherWorkers(WorkerRegistry(first.client, first.namespace), self._name, info.name),
        )

    def _build_finisher(self, records: JobRecords, in_flight: InFlight) -> JobFinisher:
        return JobFinisher(
            self._stores.images,
            records,
            self._engine,
            self._name,
            self._settings.storage_retry_s,
            in_flight,
        )

    def _build_dispatcher(self) -> Dispatcher:
        settings = self._settings
        return Dispatcher(
            self._jobs,
            self._engine.capacity,
            self._backlog,
            self._input_images,
            max_deliveries=settings.max_deliveries,
            max_in_flight=settings.post_threads,
            default_steps=self._engine.info.default_num_inference_steps,
            batch_timeout_s=0.0 if self._streams else settings.batch_timeout_s,
        )

    def _build_device_loop(self) -> Loop:
        records = [self._job_records(lane) for lane in self._no_retry]
        return make_loop(
            self._engine,
            self._streams,
            self._dispatcher,
            self._jobs.report_progress,
            self._settings.poll_s,
            self._health,
            self._hooks.on_devices_failed,
            count_succeeded(self._no_retry, records),
        )

    def _build_status_reporter(self) -> StatusReporter:
        return StatusReporter(
            self._name,
            self._engine,
            member_of(self._settings, self._stores, self._engine.info, self._queues),
            self._health,
            lambda: len(self._claims.held_tags()),
            lambda: len(self._backlog.tags()),
            self._hooks.on_drain_requested,
            self._settings.lease_s,
            self._claims.other_lanes_answer,
        )

    def _build_upkeep(self, lane: Lane, context: ShardContext) -> LaneUpkeep:
        info, number = self._engine.info, lane.number
        return LaneUpkeep(
            lease_keeper=self._build_lease_keeper(self._no_retry[number]),
            progress=self._jobs[number].progress,
            run_recovery=RunRecovery(
                context.runs,
                self._settings.bulk_stalled_s,
                context.destinations,
                {info.digest: info.model_license},
            ),
            image_sweeper=ImageSweeper(
                image_expiry(lane, self._settings, self._stores),
                self._stores.images,
                partial(self._count_workers, number),
                len(self._retrying),
            ),
        )

    def _build_lease_keeper(self, lane: Lane) -> LeaseKeeper:
        """Return the keeper of one lease. That of the first lane also reports this worker."""
        is_first = lane.number == 0
        return LeaseKeeper(
            self._claims.parts[lane.number],
            self._job_records(lane),
            self._settings.lease_s,
            partial(on_lease_lost, self._no_retry, lane.number, self._hooks.on_lease_lost),
            self._dispatcher.attended_tags,
            self._status if is_first else None,
            self._offer_renewal(lane) if is_first else None,
        )

    def _offer_renewal(self, lane: Lane) -> Callable[[], None]:
        """Return what renews the offers of this worker, if that is due."""
        info, settings = self._engine.info, self._settings
        names = {info.name, DEFAULT_MODEL} if settings.serves_default else {info.name}
        registry = OfferRegistry(lane.client, lane.namespace)
        return partial(OfferRenewal(registry, settings.forget_models_s).renew_if_due, names)
