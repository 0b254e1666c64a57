"""Commit markers: which shards of a plan are finished, by what stands in the destination."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.file_layout import stats_key
from imagefleet.shared.bulk.plan import ShardPlan
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.storage import ObjectStore

_READERS: Final = 16


def read_marker(store: ObjectStore, shard: ShardPlan) -> ShardStats | None:
    """None if it is missing, cannot be read, or is of other rows than those planned."""
    with suppress(KeyError, ValueError):
        stats = ShardStats.model_validate_json(store.get(stats_key(shard.name)))
        return stats if stats.plan_sha256 == shard.sha256 else None
    return None


def finished_shards(
    store: ObjectStore, shards: Iterable[ShardPlan]
) -> Iterator[tuple[ShardPlan, ShardStats]]:
    """Those of `shards` that have one, in their order."""
    shards = list(shards)
    with ThreadPoolExecutor(_READERS) as readers:
        markers = readers.map(lambda shard: read_marker(store, shard), shards)
        for shard, stats in zip(shards, markers, strict=True):
            if stats is not None:
                yield shard, stats
