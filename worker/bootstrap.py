"""Build the parts of a worker process and return them whole.

The only place where the parts learn of each other. Nothing here takes work: see `lifecycle`.
"""

import os
import platform
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import redis

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.errors import ConfigurationError, StorageDenied, StorageUnavailable
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.offers import OfferRegistry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, check_connection, connect
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.worker.bulk.context import ShardContext
from imagefleet.worker.bulk.run_recovery import RunRecovery
from imagefleet.worker.devices.device_loop import DeviceLoop
from imagefleet.worker.devices.health import HealthCheck
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.watchdog import Watchdog
from imagefleet.worker.devices.work import Slot
from imagefleet.worker.dispatcher import Dispatcher
from imagefleet.worker.engine.interface import Engine
from imagefleet.worker.engine.load import load_engine
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.retry import RetryPolicy
from imagefleet.worker.jobs.start import JobStarter
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from imagefleet.worker.settings import WorkerSettings
from imagefleet.worker.webhooks import start_delivery
from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop

_ENCODERS: Final = min(4, os.cpu_count() or 1)
"""Threads that encode the images of datasets."""


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The object stores of a worker."""

    images: ObjectStore
    programs: ObjectStore | None
    """Where workers share compiled executables; None: each keeps its own."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What the parts call when the process as a whole has to act."""

    on_lease_lost: Callable[[], None]
    """The lease ran out: other workers have the jobs now."""
    on_hang: Callable[[], None]
    """The devices made no step for `watchdog_s`."""
    on_devices_failed: Callable[[Sequence[Slot], Sequence[Slot]], None]
    """The devices failed with the first slots; the second ones only waited."""


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """Everything that a running worker process owns."""

    engine: Engine
    claims: Claims
    in_flight: InFlight
    backlog: RowBacklog
    dispatcher: Dispatcher
    executor: JobExecutor
    shards: ShardContext
    device_loop: DeviceLoop
    watchdog: Watchdog
    lease_keeper: LeaseKeeper
    progress: ProgressReporter
    run_recovery: RunRecovery
    offers: OfferRegistry
    delivery: DeliveryLoop


def open_stores(settings: WorkerSettings) -> Stores:
    """Open the stores without asking them anything.

    Raises:
        ConfigurationError: an address is not one of a store.
    """
    shared = settings.programs_url
    return Stores(
        images=open_store(settings.storage_url),
        programs=None if shared is None else open_store(shared, "IMAGEFLEET_PROGRAMS_URL"),
    )


def build(settings: WorkerSettings, stores: Stores, callbacks: Callbacks) -> WorkerParts:
    """Check Redis and storage, load and compile the model, and build all parts.

    Threads start only for callbacks (webhooks): they need no model.

    Raises:
        ImagefleetError: which part is wrong and what to do.
    """
    return _Builder(settings, stores, callbacks).build()


class _Builder:
    """Builds one worker's parts; holds what several of them share."""

    def __init__(self, settings: WorkerSettings, stores: Stores, callbacks: Callbacks) -> None:
        self._settings = settings
        self._stores = stores
        self._callbacks = callbacks
        self._name = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"

    def build(self) -> WorkerParts:
        self._once, self._patient = _connect(self._settings)
        _check_storage(self._stores.images)
        delivery = start_delivery(self._patient, self._settings)
        self._engine = _load_engine(self._settings, self._stores.programs)
        self._engine.warm()
        self._records = self._records_by(self._patient)
        self._dead = DeadLetters(self._patient, self._settings.namespace)
        self._claims = self._build_claims()
        self._in_flight = InFlight()
        self._backlog = RowBacklog(self._engine.capacity)
        self._health = HealthCheck(self._engine, self._stores.images, self._settings.quarantine_s)
        self._dispatcher = self._build_dispatcher()
        self._progress = ProgressReporter(self._records)
        shards = self._build_shard_context()
        device_loop = self._build_device_loop()
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
                device_loop.beats, self._callbacks.on_hang, self._settings.watchdog_s
            ),
            lease_keeper=self._build_lease_keeper(),
            progress=self._progress,
            run_recovery=RunRecovery(shards.runs, self._settings.bulk_still_s),
            offers=OfferRegistry(self._patient, self._settings.namespace),
            delivery=delivery,
        )

    def _records_by(self, client: redis.Redis) -> JobRecords:
        return JobRecords(client, self._settings.namespace, self._settings.retention_s)

    def _build_claims(self) -> Claims:
        return Claims(
            once=self._once,
            patient=self._patient,
            namespace=self._settings.namespace,
            worker=self._name,
            lease_s=self._settings.lease_s,
        )

    def _build_shard_context(self) -> ShardContext:
        settings = self._settings
        return ShardContext(
            runs=RunRecords(self._patient, settings.namespace, settings.retention_s),
            claims=self._claims,
            backlog=self._backlog,
            engine=self._engine,
            encoders=ThreadPoolExecutor(_ENCODERS, thread_name_prefix="encode"),
            checkpoint_s=settings.bulk_checkpoint_s,
            patience_s=settings.storage_patience_s,
            max_deliveries=settings.max_deliveries,
        )

    def _build_dispatcher(self) -> Dispatcher:
        settings, info = self._settings, self._engine.info
        return Dispatcher(
            self._claims,
            JobStarter(self._claims, self._records, self._dead, info, settings.max_deliveries),
            self._engine.capacity,
            self._in_flight,
            self._backlog,
            InputImages(self._stores.images, AllowList.parse(settings.callback_allow)),
            max_deliveries=settings.max_deliveries,
            max_in_hand=settings.post_threads,
            usual_steps=info.default_num_inference_steps,
            linger_s=settings.linger_s,
        )

    def _build_executor(self) -> JobExecutor:
        settings = self._settings
        finisher = JobFinisher(
            self._stores.images,
            self._records,
            self._engine,
            self._name,
            settings.storage_patience_s,
        )
        retries = RetryPolicy(self._records, self._claims, self._dead, settings.max_retries)
        return JobExecutor(
            self._in_flight, self._records, self._claims, finisher, retries, self._health
        )

    def _build_device_loop(self) -> DeviceLoop:
        def report(batch: Sequence[Slot], step: int) -> None:
            self._progress.report(batch, step)
            self._dispatcher.report(batch, step)

        return DeviceLoop(
            self._engine,
            self._dispatcher.next_batch,
            report,
            self._settings.poll_s,
            self._health,
            self._callbacks.on_devices_failed,
        )

    def _build_lease_keeper(self) -> LeaseKeeper:
        impatient = self._records_by(self._once)
        lease_s = self._settings.lease_s
        return LeaseKeeper(self._claims, impatient, lease_s, self._callbacks.on_lease_lost)


def _connect(settings: WorkerSettings) -> tuple[redis.Redis, redis.Redis]:
    """Return a client that tries once, checked, and one that waits until Redis is back."""
    url = settings.redis_url.get_secret_value()
    once = connect(url, retries=0)
    check_connection(once, url)
    return once, connect(url, retries=RETRY_FOREVER)


def _check_storage(store: ObjectStore) -> None:
    try:
        store.check()
    except (ConfigurationError, StorageDenied, StorageUnavailable) as error:
        raise type(error)(f"IMAGEFLEET_STORAGE_URL: {error}") from error


def _load_engine(settings: WorkerSettings, programs: ObjectStore | None) -> Engine:
    secret = settings.programs_secret
    return load_engine(
        settings.model,
        shapes=settings.declared_shapes(),
        per_device_batch=settings.per_device_batch,
        mesh=settings.mesh,
        devices=settings.devices,
        dtype=settings.dtype,
        cache_dir=settings.cache_dir,
        programs=programs,
        programs_secret=secret.get_secret_value() if secret else "",
        max_num_inference_steps=settings.max_num_inference_steps,
        safety_checker=settings.safety_checker,
    )
