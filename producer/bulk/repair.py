"""Find what must be generated again after `verify`: the damaged shards and their files."""

from imagefleet.producer.bulk.verify import VerifyReport
from imagefleet.shared.bulk.file_layout import archive_key, metadata_key, parquet_key, stats_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.storage import ObjectStore

_NOT_REPAIRABLE = ("damaged plan", "not compared", "unplanned file")


def damaged_shards(plan: Plan, report: VerifyReport) -> list[ShardPlan]:
    """Return the shards whose problems go away when they are generated again.

    A damaged plan cannot be repaired, and unplanned files are not deleted.
    """
    damaged = {problem.shard for problem in report.problems if problem.what not in _NOT_REPAIRABLE}
    return [shard for shard in plan.shards if shard.name in damaged]


def shard_files(store: ObjectStore, shard: str) -> list[str]:
    """Return the keys in the shard's commit marker; without a marker, all keys it may have."""
    try:
        stats = ShardStats.model_validate_json(store.get(stats_key(shard)))
        return [file.key for file in stats.files]
    except (KeyError, ValueError):
        return [archive_key(shard), parquet_key(shard), metadata_key(shard)]
