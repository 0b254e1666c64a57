"""Read the first samples of a finished shard, and little else of it.

Input: a store, the plan and the commit marker of a shard. Output: images with their prompts. A
shard may be larger than the memory: only the ranges that hold the samples are read.
"""

import io
import tarfile
from collections.abc import Iterator
from itertools import islice
from typing import Final

from imagefleet.shared.bulk.file_layout import (
    EXTENSION,
    file_key,
    images_key,
)
from imagefleet.shared.bulk.plan import BulkFormat, Plan
from imagefleet.shared.bulk.range_file import RangeFile
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.storage import ObjectStore

_READ_AHEAD: Final = 1 << 20
"""One request reads this many bytes: some images of 512x512."""
_MAX_SAMPLE_BYTES: Final = 64 << 20
"""Largest image or text that is read for the sheet."""


def first_samples(
    store: ObjectStore, plan: Plan, stats: ShardStats, count: int
) -> Iterator[tuple[bytes, str]]:
    """Yield image file and prompt of up to `count` samples, from the first on.

    Raises:
        KeyError, OSError, ValueError, tarfile.TarError: a file is missing or damaged.
        ImportError: the reader of Parquet files is not installed.
    """
    sizes = {file.key: file.size for file in stats.files}
    key = images_key(plan.format, stats.shard)
    if key is None:
        return _in_folder(store, plan, stats, count)
    file = RangeFile(store, key, sizes[key])
    samples = _in_tar(file, plan) if plan.format is BulkFormat.WEBDATASET else _in_parquet(file)
    return islice(samples, count)


def _in_folder(
    store: ObjectStore, plan: Plan, stats: ShardStats, count: int
) -> Iterator[tuple[bytes, str]]:
    suffix = f".{EXTENSION[plan.image_format]}"
    images = sorted(file.key for file in stats.files if file.key.endswith(suffix))
    for key in images[:count]:
        text = file_key(stats.shard, key.rpartition("/")[2].removesuffix(suffix) + ".txt")
        yield store.get(key, _MAX_SAMPLE_BYTES), store.get(text, _MAX_SAMPLE_BYTES).decode()


def _in_tar(file: io.RawIOBase, plan: Plan) -> Iterator[tuple[bytes, str]]:
    image = b""
    with tarfile.open(fileobj=io.BufferedReader(file, _READ_AHEAD), mode="r:") as archive:
        for member in archive:
            if member.issparse() or member.size > _MAX_SAMPLE_BYTES:
                raise ValueError(f"{member.name} is too large")
            content = archive.extractfile(member)
            if content is not None and member.name.endswith(f".{EXTENSION[plan.image_format]}"):
                image = content.read()
            elif content is not None and member.name.endswith(".txt"):
                yield image, content.read().decode()


def _in_parquet(file: io.RawIOBase) -> Iterator[tuple[bytes, str]]:
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetFile(pyarrow.PythonFile(file, mode="r")) as table:
        for batch in table.iter_batches(1, row_groups=[0], columns=["image", "prompt"]):
            [row] = batch.to_pylist()
            yield row["image"]["bytes"], row["prompt"]
