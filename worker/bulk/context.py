"""What a worker has for making shards, wired once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.storage.retry import retry_while_unavailable
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.engine.interface import Engine
from imagefleet.worker.queues.claims import Claims

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ShardContext:
    """Shared by all shards in hand."""

    runs: RunRecords
    claims: Claims
    backlog: RowBacklog
    engine: Engine
    encoders: ThreadPoolExecutor
    checkpoint_s: float
    patience_s: float
    """How long the store may fail."""
    max_deliveries: int

    def retry_while_unavailable(self, act: Callable[[], T], what: str) -> T:
        """Do `act` until the store can. Raises StorageUnavailable."""
        return retry_while_unavailable(act, self.patience_s, what)
