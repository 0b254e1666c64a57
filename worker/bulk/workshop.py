"""What a worker has for making shards, wired once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from shared.bulk.runs import Runs
from worker.bulk.backlog import Backlog
from worker.claims import Claims
from worker.engine.base import Engine


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
