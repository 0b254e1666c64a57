"""Hold the objects that a worker needs to make shards. They are created once per process."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVar

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.worker_status import WorkerRegistry, WorkerStatus
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.storage.retry import retry_while_unavailable
from imagefleet.worker.bulk.destinations import DestinationPolicy
from imagefleet.worker.bulk.store_probe import StoreProbe
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.slots import InitInput
from imagefleet.worker.engine.contract.interface import Engine, Shape
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.settings.worker_settings import WorkerSettings

T = TypeVar("T")

_ENCODER_THREADS: Final = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class ShardContext:
    """The objects and settings that all shards of a worker share."""

    runs: RunRecords
    claims: Claims
    backlog: RowBacklog
    engine: Engine
    encoders: ThreadPoolExecutor
    fetch_image: Callable[[JobRequest, Shape], tuple[InitInput, ...]]
    """It is `InputImages.fetch` of this worker."""
    image_fetchers: ThreadPoolExecutor
    checkpoint_s: float
    """Two checkpoints of a shard are this many seconds apart."""
    storage_retry_s: float
    """Seconds to retry while the store is unavailable."""
    max_deliveries: int
    destinations: DestinationPolicy
    store_probe: StoreProbe
    read_workers: Callable[[], list[WorkerStatus]]
    """It returns what all workers of the fleet report of themselves."""

    @classmethod
    def build(
        cls,
        settings: WorkerSettings,
        lane: Lane,
        *,
        claims: Claims,
        backlog: RowBacklog,
        engine: Engine,
        destinations: DestinationPolicy,
        fetch_image: Callable[[JobRequest, Shape], tuple[InitInput, ...]],
    ) -> Self:
        """Return the context of a worker with these settings and parts, for the shards of the first
        lane. No thread is started."""
        return cls(
            runs=RunRecords(lane.client, lane.namespace, settings.retention_s),
            claims=claims,
            backlog=backlog,
            engine=engine,
            encoders=ThreadPoolExecutor(_ENCODER_THREADS, "encode"),
            fetch_image=fetch_image,
            image_fetchers=ThreadPoolExecutor(settings.input_image_fetches, "row-images"),
            checkpoint_s=settings.bulk_checkpoint_s,
            storage_retry_s=settings.storage_retry_s,
            max_deliveries=settings.max_deliveries,
            destinations=destinations,
            store_probe=StoreProbe(backlog),
            read_workers=WorkerRegistry(lane.client, lane.namespace).statuses,
        )

    def in_lane(self, lane: Lane, claims: Claims, retention_s: int) -> Self:
        """Return what has the same parts, for the shards of another lane."""
        runs = RunRecords(lane.client, lane.namespace, retention_s)
        return replace(self, runs=runs, claims=claims)

    def retry_while_unavailable(self, act: Callable[[], T], what: str) -> T:
        """Call `act` until the store is available. Raise StorageUnavailable after the retry time.

        `what` names the action in the log.
        """
        return retry_while_unavailable(act, self.storage_retry_s, what)
