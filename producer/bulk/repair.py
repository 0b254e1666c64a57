"""Find what must be generated again: damaged shards with their files, and shards with failed rows.

Input: a plan, its store and the report of `verify`. Output: shards and keys. Nothing is changed.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from imagefleet.producer.bulk.verify_report import VerifyReport
from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.file_layout import (
    CHECKPOINTS,
    FAILED_ROWS,
    archive_key,
    checkpoints_prefix,
    metadata_key,
    parquet_key,
    stats_key,
)
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.stats import ShardFile, ShardStats
from imagefleet.shared.storage import ObjectStore

_NOT_REPAIRABLE: Final = frozenset({"damaged plan", "not compared", "unplanned file"})
_OF_ALL_FILES: Final = frozenset({"unfinished", "unplanned samples", "different image"})
"""Problems with which no file of a shard may be used again."""


def damaged_shards(plan: Plan, store: ObjectStore, report: VerifyReport) -> list[ShardPlan]:
    """Return the shards whose problems go away when they are generated again.

    A damaged plan cannot be repaired, and unplanned files are not deleted. A shard that was only
    unfinished may have finished since then.
    """
    problems: dict[str, set[str]] = defaultdict(set)
    for problem in report.problems:
        problems[problem.shard].add(problem.what)
    unfinished = [shard for shard in plan.shards if problems[shard.name] == {"unfinished"}]
    finished = {shard.name for shard, _ in finished_shards(store, plan, unfinished)}
    return [
        shard
        for shard in plan.shards
        if problems[shard.name] - _NOT_REPAIRABLE and shard.name not in finished
    ]


def is_repaired(report: VerifyReport) -> bool:
    """Return whether all problems go away when the `damaged_shards` are generated again."""
    return not any(problem.what in _NOT_REPAIRABLE for problem in report.problems)


def damaged_files(store: ObjectStore, shard: str, report: VerifyReport) -> list[str]:
    """Return the keys of a damaged shard whose files must not be used again.

    Files that are those of the commit marker are used again: their samples are as planned. Without
    a marker, return all keys that the shard may have.
    """
    try:
        stats = ShardStats.model_validate_json(store.get(stats_key(shard)))
    except (KeyError, ValueError):
        return [archive_key(shard), parquet_key(shard), metadata_key(shard)]
    problems = {problem.what for problem in report.problems if problem.shard == shard}
    all_files = bool(problems & _OF_ALL_FILES)
    return [file.key for file in stats.files if all_files or not _is_intact(store, file)]


def with_failed_rows(store: ObjectStore, shards: Sequence[ShardPlan]) -> list[ShardPlan]:
    """Return the shards among unfinished ones whose checkpoints list failed rows."""
    if not shards:
        return []
    keys = (key for key in store.list(CHECKPOINTS) if key.endswith(FAILED_ROWS))
    prefixes = {f"{key.rpartition('/')[0]}/" for key in keys}
    return [shard for shard in shards if checkpoints_prefix(shard.name, shard.sha256) in prefixes]


def _is_intact(store: ObjectStore, file: ShardFile) -> bool:
    try:
        return hashlib.sha256(store.get(file.key)).hexdigest() == file.sha256
    except KeyError:
        return False
