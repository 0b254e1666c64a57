"""What a worker has for making shards, wired once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from imagefleet.shared.bulk.runs import Runs
from imagefleet.shared.storage.retry import patiently
from imagefleet.worker.devices.row_backlog import Backlog
from imagefleet.worker.engine.interface import Engine
from imagefleet.worker.queues.claims import Claims

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Shared by all shards in hand."""

    runs: Runs
    claims: Claims
    backlog: Backlog
    engine: Engine
    encoders: ThreadPoolExecutor
    checkpoint_s: float
    patience_s: float
    """How long the store may fail."""
    max_deliveries: int

    def patiently(self, act: Callable[[], T], what: str) -> T:
        """Do `act` until the store can. Raises StorageUnavailable."""
        return patiently(act, self.patience_s, what)
