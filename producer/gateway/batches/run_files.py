"""List and find the files of the finished shards of a run. The calls block."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.gateway.batches.unfinished_shards import read_unfinished
from imagefleet.producer.gateway.files.tenant_files import parts_of
from imagefleet.producer.gateway.problems import unknown
from imagefleet.shared.bulk.commit_markers import finished_shards, read_marker
from imagefleet.shared.bulk.file_layout import (
    CARD,
    CONTACT_SHEET,
    MAX_TEXT_BYTES,
    PLAN,
    REJECTED,
    RUN_STATS,
)
from imagefleet.shared.bulk.plan import ShardPlan
from imagefleet.shared.bulk.stats import ShardFile
from imagefleet.shared.jobs.model import State

_OF_RUN: Final = (PLAN, REJECTED, RUN_STATS, CARD, CONTACT_SHEET)
"""Files of a run that belong to no shard. Commit markers list all others."""
_TYPES: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "webp": "image/webp",
    "json": "application/json",
}
_MARKERS_AT_ONCE: Final = 64
"""Of so many shards the commit markers are read, before it is known whether more are needed."""
ANY_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """This is one file of a dataset, with its content."""

    parts: Iterator[bytes]
    sha256: str | None
    """The digest is hexadecimal. None: it is not known."""
    size: int
    media_type: str


def find_file(run: BulkRun, key: str) -> RunFile:
    """Return a file of a run by its key. Raises Problem (404)."""
    media_type = _TYPES.get(key.rpartition(".")[2], ANY_TYPE)
    if key in _OF_RUN:
        return _whole(key, lambda: run.store.get(key, MAX_TEXT_BYTES), media_type)
    name = key.partition("/")[0].partition(".")[0]
    for shard in run.plan.shards:
        if shard.name == name:
            marker = read_marker(run.store, run.plan, shard)
            if marker is None:
                return _whole(key, partial(read_unfinished, run, shard, key), media_type)
            for file in marker.files:
                if file.key == key:
                    return RunFile(
                        parts=parts_of(run.store, key, file.size),
                        sha256=file.sha256,
                        size=file.size,
                        media_type=media_type,
                    )
    raise unknown("file", key)


def _whole(key: str, read: Callable[[], bytes], media_type: str) -> RunFile:
    """Return a file that is read at once. Raises Problem (404)."""
    try:
        content = read()
    except KeyError:
        raise unknown("file", key) from None
    return RunFile(parts=iter([content]), sha256=None, size=len(content), media_type=media_type)


def shards_by_end(run: BulkRun) -> tuple[list[ShardPlan], list[ShardPlan]]:
    """Return the shards that are finished, and the others. If Redis has forgotten the run, it has
    ended, so all may be finished. Raises BrokerUnavailable."""
    with run.connection.runs(run.id) as runs:
        records = {record.shard: record.state for record in runs.shards(run.id)}
    if not records:
        return list(run.plan.shards), []
    done = {number for number, state in records.items() if state is State.SUCCEEDED}
    finished = [shard for shard in run.plan.shards if shard.number in done]
    return finished, [shard for shard in run.plan.shards if shard.number not in done]


def list_files(run: BulkRun, after: str, limit: int) -> tuple[list[ShardFile], bool]:
    """Return the files of finished shards behind the key `after`, and whether more follow.

    Raises BrokerUnavailable, StorageDenied, StorageUnavailable.
    """
    first = after.partition("/")[0].partition(".")[0]
    finished, _ = shards_by_end(run)
    wanted = [shard for shard in finished if shard.name >= first]
    found: list[ShardFile] = []
    for begin in range(0, len(wanted), _MARKERS_AT_ONCE):
        part = wanted[begin : begin + _MARKERS_AT_ONCE]
        for shard, marker in finished_shards(run.store, run.plan, part):
            ordered = sorted(marker.files, key=lambda file: file.key)
            found += [each for each in ordered if shard.name > first or each.key > after]
        if len(found) > limit:
            return found[:limit], True
    return found, False
