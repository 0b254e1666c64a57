"""Hold the objects that a worker needs to make shards. They are created once per process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.storage.retry import retry_while_unavailable
from imagefleet.worker.bulk.destinations import DestinationPolicy
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.engine.interface import Engine
from imagefleet.worker.queues.claims import Claims

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ShardContext:
    """The objects and settings that all shards of a worker share."""

    runs: RunRecords
    claims: Claims
    backlog: RowBacklog
    engine: Engine
    encoders: ThreadPoolExecutor
    checkpoint_s: float
    """Seconds between two checkpoints of a shard."""
    storage_retry_s: float
    """Seconds to retry while the store is unavailable."""
    max_deliveries: int
    destinations: DestinationPolicy

    def retry_while_unavailable(self, act: Callable[[], T], what: str) -> T:
        """Call `act` until the store is available. Raise StorageUnavailable after the retry time.

        `what` names the action in the log.
        """
        return retry_while_unavailable(act, self.storage_retry_s, what)
