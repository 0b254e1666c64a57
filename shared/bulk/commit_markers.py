"""Read the commit markers of a dataset: which shards of a plan are finished.

Input: a store and shards of a plan. Output: the shards that have a valid marker, with its content.
This module does not use Redis: the destination alone decides.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.file_layout import MAX_TEXT_BYTES, images_key, stats_key
from imagefleet.shared.bulk.plan import BulkFormat, Plan, ShardPlan
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore

_READERS: Final = 16


def read_marker(store: ObjectStore, plan: Plan, shard: ShardPlan) -> ShardStats | None:
    """Return the commit marker of `shard`.

    Return None if it is missing, cannot be read, is too large, or belongs to another plan.
    """
    with suppress(KeyError, ValueError, InvalidRequest):
        stats = ShardStats.model_validate_json(store.get(stats_key(shard.name), MAX_TEXT_BYTES))
        return None if difference_from_plan(stats, plan, shard) else stats
    return None


def difference_from_plan(stats: ShardStats, plan: Plan, shard: ShardPlan) -> str | None:
    """Return why a commit marker belongs to another plan, to continue a sentence about it.

    None: it may belong to `plan`. A marker does not name the parameters that all rows share.
    """
    if stats.plan_sha256 != shard.sha256:
        return "belongs to other rows than those planned"
    if plan.model_digest not in (None, stats.model_digest):
        return f"belongs to model {stats.model_digest}, the plan to {plan.model_digest}"
    listed = {file.key for file in stats.files}
    for file_format in BulkFormat:
        key = images_key(file_format, shard.name)
        if key is not None and (key in listed) is not (file_format is plan.format):
            return f"belongs to another format than {plan.format}"
    return None


def finished_shards(
    store: ObjectStore, plan: Plan, shards: Iterable[ShardPlan]
) -> Iterator[tuple[ShardPlan, ShardStats]]:
    """Yield the shards that have a commit marker, with the marker, in the order of `shards`."""
    shards = list(shards)
    with ThreadPoolExecutor(_READERS) as readers:
        markers = readers.map(lambda shard: read_marker(store, plan, shard), shards)
        for shard, stats in zip(shards, markers, strict=True):
            if stats is not None:
                yield shard, stats
