"""Mend what `verify` found: damaged shards lose their files and are made again."""

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.verify import Verdict
from imagefleet.shared.bulk.file_layout import archive_key, metadata_key, parquet_key, stats_key
from imagefleet.shared.bulk.stats import ShardStats

_BEYOND_US = ("damaged plan", "not compared", "stray file")


def repair(run: BulkRun, verdict: Verdict) -> int:
    """Send the shards with problems again. How many went: not those in work, and a damaged plan is
    not mended, a stray file not removed."""
    damaged = {problem.shard for problem in verdict.problems if problem.what not in _BEYOND_US}
    shards = [shard for shard in run.plan.shards if shard.name in damaged]
    return run.send_again(shards, lambda shard: _files(run, shard.name))


def _files(run: BulkRun, shard: str) -> list[str]:
    try:
        stats = ShardStats.model_validate_json(run.store.get(stats_key(shard)))
        return [file.key for file in stats.files]
    except (KeyError, ValueError):
        return [archive_key(shard), parquet_key(shard), metadata_key(shard)]
