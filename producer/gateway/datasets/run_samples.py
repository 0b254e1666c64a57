"""Show some images of a run, also while it still runs. The calls block.

Input: a run. Output: samples of its finished shards, and of the checkpoints of unfinished ones,
which workers store each half minute. Of an archive only its beginning is read, so a large shard
costs no more than a small one. The images of finished shards in Parquet are not shown.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.gateway.batches.run_files import shards_by_end
from imagefleet.producer.gateway.batches.unfinished_shards import DAMAGES, samples_in
from imagefleet.shared.bulk.commit_markers import read_marker
from imagefleet.shared.bulk.file_layout import (
    CHECKPOINTS,
    EXTENSION,
    archive_key,
    checkpoints_prefix,
    file_key,
    metadata_key,
)
from imagefleet.shared.bulk.plan import BulkFormat, ShardPlan
from imagefleet.shared.bulk.range_file import RangeFile
from imagefleet.shared.errors import InvalidRequest, PlanDamaged

SHOWN: Final = ("row", "prompt", "seed", "width", "height")
"""A sample is shown with these of its metadata."""
_DAMAGES: Final = (*DAMAGES, InvalidRequest)
"""Reading raises these if a file is missing, damaged or too large."""
_KEY: Final = re.compile(r"[0-9]{9}-[0-9]{2}")
_CHECKPOINT: Final = re.compile(r"([0-9]{9}-[0-9]{2})-([0-9]{9}-[0-9]{2})\.tar$")
_READ_AHEAD: Final = 1 << 20
_MAX_BYTES: Final = 64 << 20
"""So much of an archive is read at most for one image, or to list samples of it."""
_BYTES_OF_A_LINE: Final = 16 << 10
"""The metadata of a sample have fewer bytes, in nearly all datasets."""


@dataclass(frozen=True, kw_only=True)
class ShownSample:
    """An image of a run that can be shown."""

    shard: str
    key: str
    """It has the row and the number of the image, as in `000000003-00`."""
    document: dict[str, Any]
    """It holds those of its metadata that are `SHOWN`."""


def list_samples(run: BulkRun, count: int) -> list[ShownSample]:
    """Return up to `count` samples from shards all over the run, in the order of their keys.

    Raises StorageDenied, StorageUnavailable, BrokerUnavailable.
    """
    finished, unfinished = shards_by_end(run)
    if run.plan.format is BulkFormat.PARQUET:
        finished = []
    checkpoints = _newest_checkpoints(run, unfinished) if unfinished else {}
    shards = [*finished, *(shard for shard in unfinished if shard.name in checkpoints)]
    chosen = _spread(shards, count)
    found: list[ShownSample] = []
    for number, shard in enumerate(chosen):
        wanted = -(-(count - len(found)) // (len(chosen) - number))
        with suppress(*_DAMAGES):
            archive = checkpoints.get(shard.name)
            for each in islice(_documents(run, shard, archive, wanted), wanted):
                document = {name: each[name] for name in SHOWN}
                found.append(ShownSample(shard=shard.name, key=each["key"], document=document))
    return sorted(found, key=lambda each: each.key)


def read_sample(run: BulkRun, shard_name: str, key: str) -> bytes:
    """Return the file of an image.

    Raises:
        KeyError: there is none, or it lies too far from the beginning of its archive.
        StorageDenied, StorageUnavailable.
    """
    try:
        shard = run.plan.find_shard(shard_name)
    except PlanDamaged:
        raise KeyError(shard_name) from None
    if not _KEY.fullmatch(key):
        raise KeyError(key)
    with suppress(*_DAMAGES):
        return _read(run, shard, key)
    return _read_again(run, shard, key)


def _read_again(run: BulkRun, shard: ShardPlan, key: str) -> bytes:
    """Return an image whose shard may have been finished meanwhile. Raises KeyError."""
    try:
        return _read(run, shard, key)
    except _DAMAGES:
        raise KeyError(key) from None


def _read(run: BulkRun, shard: ShardPlan, key: str) -> bytes:
    store, name = run.store, f"{key}.{EXTENSION[run.plan.image_format]}"
    if read_marker(store, run.plan, shard) is None:
        prefix = checkpoints_prefix(shard.name, shard.sha256)
        archives: Sequence[str] = [each for each in store.list(prefix) if _may_have(each, key)]
    elif run.plan.format is BulkFormat.FILES:
        return store.get(file_key(shard.name, name), _MAX_BYTES)
    else:
        archives = [archive_key(shard.name)]
    for archive in archives:
        for found, image, _ in _samples(run, archive):
            if found == name:
                return image
    raise KeyError(key)


def _may_have(checkpoint: str, key: str) -> bool:
    """Return whether a checkpoint may have a sample: its name has the first and the last key."""
    name = _CHECKPOINT.search(checkpoint)
    return name is not None and name[1] <= key <= name[2]


def _newest_checkpoints(run: BulkRun, shards: Sequence[ShardPlan]) -> dict[str, str]:
    """Return the key of the newest checkpoint of each of these shards that has one."""
    names = {checkpoints_prefix(shard.name, shard.sha256): shard.name for shard in shards}
    newest: dict[str, str] = {}
    for key in run.store.list(CHECKPOINTS):
        shard = names.get(f"{key.rpartition('/')[0]}/")
        if shard is not None and _CHECKPOINT.search(key):
            newest[shard] = max(key, newest.get(shard, ""))
    return newest


def _spread(shards: Sequence[ShardPlan], count: int) -> list[ShardPlan]:
    """Return at most `count` shards, the first and the last among them."""
    if len(shards) <= count:
        return list(shards)
    if count == 1:
        return [shards[0]]
    return [shards[at * (len(shards) - 1) // (count - 1)] for at in range(count)]


def _documents(
    run: BulkRun, shard: ShardPlan, checkpoint: str | None, count: int
) -> Iterator[dict[str, Any]]:
    """Yield the metadata of the first samples of a shard, or of its checkpoint."""
    if checkpoint is None and run.plan.format is BulkFormat.FILES:
        text = run.store.get_range(metadata_key(shard.name), 0, count * _BYTES_OF_A_LINE)
        lines = text.splitlines(keepends=True)
        return (json.loads(line) for line in lines if line.endswith(b"\n"))
    archive = checkpoint or archive_key(shard.name)
    return (document for _, _, document in _samples(run, archive))


def _samples(run: BulkRun, archive: str) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    file = RangeFile(run.store, archive, _MAX_BYTES, _MAX_BYTES)
    return samples_in(io.BufferedReader(file, _READ_AHEAD))
