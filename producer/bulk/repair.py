"""Find what must be made again after `verify`: the damaged shards and the files they have."""

from imagefleet.producer.bulk.verify import VerifyReport
from imagefleet.shared.bulk.file_layout import archive_key, metadata_key, parquet_key, stats_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.storage import ObjectStore

_NOT_REPAIRABLE = ("damaged plan", "not compared", "stray file")


def damaged_shards(plan: Plan, report: VerifyReport) -> list[ShardPlan]:
    """Return the shards with problems that making them again can repair.

    A damaged plan is not repaired, and a stray file is not removed.
    """
    damaged = {problem.shard for problem in report.problems if problem.what not in _NOT_REPAIRABLE}
    return [shard for shard in plan.shards if shard.name in damaged]


def shard_files(store: ObjectStore, shard: str) -> list[str]:
    """Return the keys that the shard's commit marker names, or all it may have without one."""
    try:
        stats = ShardStats.model_validate_json(store.get(stats_key(shard)))
        return [file.key for file in stats.files]
    except (KeyError, ValueError):
        return [archive_key(shard), parquet_key(shard), metadata_key(shard)]
