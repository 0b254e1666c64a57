"""Build the parts of a worker process and connect them.

Input: the settings. Output: `WorkerParts`. Nothing here claims work: see `lifecycle`.
"""

import logging
import os
import platform
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import redis

from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.offers import OfferRegistry, OfferRenewal
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.worker_status import WorkerRegistry
from imagefleet.shared.process.garbage import collecting_later
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
from imagefleet.worker.jobs.other_workers import OtherWorkers, count_succeeded
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.process.log_format import name_worker
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.join_fleet import FleetJoin, member_of
from imagefleet.worker.startup.load_model import load_model
from imagefleet.worker.startup.redis_clients import connect_clients
from imagefleet.worker.startup.start_delivery import start_delivery
from imagefleet.worker.startup.status_reporter import StatusReporter
from imagefleet.worker.startup.stores import Stores, check_image_store
from imagefleet.worker.startup.worker_parts import ProcessHooks, WorkerParts

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
        self._no_retry_client, self._retrying_client = connect_clients(self._settings)
        check_image_store(self._stores.images, self._settings)
        self._claims = self._build_claims()
        self._delivery = start_delivery(self._retrying_client, self._settings, self._count_workers)
        self._engine = load_model(self._settings, self._stores.executables)
        self._streams = self._warm()
        self._records = self._job_records(self._retrying_client)
        self._dead_letters = DeadLetters(
            self._retrying_client,
            self._settings.namespace,
            max_bytes=self._settings.max_dead_letter_bytes,
        )
        self._expiry = self._build_expiry()
        self._in_flight = InFlight()
        self._backlog = RowBacklog(self._engine.capacity)
        self._health = HealthCheck(
            self._engine, self._stores.images, self._settings.quarantine_s, self._streams
        )
        self._input_images = self._build_input_images()
        self._dispatcher = self._build_dispatcher()
        self._progress = ProgressReporter(self._records, self._count_workers)
        shards = self._build_shard_context()
        device_loop = self._build_device_loop()
        status = self._build_status_reporter()
        return WorkerParts(
            engine=self._engine,
            claims=self._claims,
            in_flight=self._in_flight,
            backlog=self._backlog,
            dispatcher=self._dispatcher,
            executor=self._build_executor(),
            shards=shards,
            device_loop=device_loop,
            watchdog=Watchdog(
                device_loop.progress_counts, self._hooks.on_hang, self._settings.watchdog_s
            ),
            lease_keeper=self._build_lease_keeper(status),
            progress=self._progress,
            run_recovery=RunRecovery(
                shards.runs,
                self._settings.bulk_stalled_s,
                shards.destinations,
                {self._engine.info.digest: self._engine.info.model_license},
            ),
            image_sweeper=ImageSweeper(self._expiry, self._stores.images, self._count_workers),
            offers=self._offers(self._retrying_client),
            delivery=self._delivery,
            callbacks=Outbox(self._no_retry_client, self._settings.namespace),
            status=status,
            fleet=FleetJoin.build(self._retrying_client, self._settings, self._name, status),
        )

    def _warm(self) -> Sequence[Stream]:
        """Compile the engine for the policy. Return its streams, if it runs streams."""
        if self._settings.batching == "continuous":
            return self._engine.open_streams()
        self._engine.warm()
        return ()

    def _job_records(self, client: redis.Redis) -> JobRecords:
        settings = self._settings
        return JobRecords(client, settings.namespace, settings.retention_s, self._delivery.wake)

    def _build_expiry(self) -> ImageExpiry:
        return ImageExpiry(
            self._retrying_client,
            self._settings.namespace,
            self._stores.images_url or self._stores.images.url,
            default_keep_s=self._settings.keep,
        )

    def _count_workers(self) -> int:
        """Return how many workers had a lease at the latest heartbeat, 0 before the first."""
        return self._claims.lease.workers

    def _build_claims(self) -> Claims:
        return Claims(
            no_retry_client=self._no_retry_client,
            retrying_client=self._retrying_client,
            namespace=self._settings.namespace,
            worker=self._name,
            lease_s=self._settings.lease_s,
            max_message_bytes=self._settings.max_message_bytes,
            newer_message_s=self._settings.newer_message_s,
        )

    def _build_shard_context(self) -> ShardContext:
        return ShardContext.build(
            self._settings,
            self._retrying_client,
            claims=self._claims,
            backlog=self._backlog,
            engine=self._engine,
            destinations=self._stores.destinations,
            fetch_image=self._input_images.fetch,
        )

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

    def _build_dispatcher(self) -> Dispatcher:
        settings, info = self._settings, self._engine.info
        registry = WorkerRegistry(self._retrying_client, settings.namespace)
        refuser = Refuser(self._claims, self._records, self._dead_letters)
        return Dispatcher(
            self._claims,
            JobStarter(
                self._claims,
                self._records,
                refuser,
                info,
                settings.max_deliveries,
                self._expiry,
                OtherWorkers(registry, self._name, info.name),
            ),
            self._engine.capacity,
            self._in_flight,
            self._backlog,
            self._input_images,
            max_deliveries=settings.max_deliveries,
            max_in_flight=settings.post_threads,
            default_steps=info.default_num_inference_steps,
            batch_timeout_s=0.0 if self._streams else settings.batch_timeout_s,
        )

    def _build_executor(self) -> JobExecutor:
        settings = self._settings
        finisher = JobFinisher(
            self._stores.images,
            self._records,
            self._engine,
            self._name,
            settings.storage_retry_s,
            self._in_flight,
        )
        retries = RetryPolicy(self._records, self._claims, self._dead_letters, settings.max_retries)
        return JobExecutor(
            self._in_flight, self._records, self._claims, finisher, retries, self._health
        )

    def _build_device_loop(self) -> Loop:
        return make_loop(
            self._engine,
            self._streams,
            self._dispatcher,
            self._progress.report,
            self._settings.poll_s,
            self._health,
            self._hooks.on_devices_failed,
            count_succeeded(self._job_records(self._no_retry_client)),
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
        )

    def _build_lease_keeper(self, status: StatusReporter) -> LeaseKeeper:
        records = self._job_records(self._no_retry_client)
        lease_s = self._settings.lease_s
        return LeaseKeeper(
            self._claims,
            records,
            lease_s,
            self._hooks.on_lease_lost,
            self._dispatcher.attended_tags,
            status,
            self._offer_renewal(),
        )

    def _offer_renewal(self) -> Callable[[], None]:
        """Return what renews the offers of this worker, if that is due."""
        info, settings = self._engine.info, self._settings
        names = {info.name, DEFAULT_MODEL} if settings.serves_default else {info.name}
        renewal = OfferRenewal(self._offers(self._no_retry_client), settings.forget_models_s)
        return partial(renewal.renew_if_due, names)

    def _offers(self, client: redis.Redis) -> OfferRegistry:
        return OfferRegistry(client, self._settings.namespace)
