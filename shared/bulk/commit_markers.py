"""Read the commit markers of a dataset: which shards of a plan are finished.

Input: a store and shards of a plan. Output: the shards that have a valid marker, with its content.
This module does not use Redis: the destination alone decides.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.file_layout import MAX_TEXT_BYTES, stats_key
from imagefleet.shared.bulk.plan import ShardPlan
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore

_READERS: Final = 16


def read_marker(store: ObjectStore, shard: ShardPlan) -> ShardStats | None:
    """Return the commit marker of `shard`.

    Return None if it is missing, cannot be read, is too large, or belongs to other rows than those
    planned.
    """
    with suppress(KeyError, ValueError, InvalidRequest):
        stats = ShardStats.model_validate_json(store.get(stats_key(shard.name), MAX_TEXT_BYTES))
        return stats if stats.plan_sha256 == shard.sha256 else None
    return None


def finished_shards(
    store: ObjectStore, shards: Iterable[ShardPlan]
) -> Iterator[tuple[ShardPlan, ShardStats]]:
    """Yield the shards that have a commit marker, with the marker, in the order of `shards`."""
    shards = list(shards)
    with ThreadPoolExecutor(_READERS) as readers:
        markers = readers.map(lambda shard: read_marker(store, shard), shards)
        for shard, stats in zip(shards, markers, strict=True):
            if stats is not None:
                yield shard, stats
