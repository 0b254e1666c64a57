"""Name the files of a dataset in its destination.

    plan/plan.json         the plan; written last, so its presence says that the plan is complete
    plan/00000.jsonl       the rows of shard 00000
    plan/rejected.jsonl    rows that cannot be generated, with the reasons
    parts/00000/<sum>/…    checkpoints of an unfinished shard; deleted once it is committed
    00000.tar              a finished shard (`webdataset`); 00000.parquet; 00000/<sample key>.png
    00000/metadata.jsonl   columns of the images beside it, as the readers of `imagefolder` expect
    00000.jsonl            its metadata, one line per sample
    00000.stats.json       its commit marker, written last: counts, failures, SHA-256 of its files
    stats.json, README.md  summary of the whole run, written once it is complete
    contact-sheet.png      some of its images, which README.md shows

Input: shard and row numbers. Output: object keys. This module reads and writes nothing.
"""

from typing import Final

from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.jobs.model import ImageFormat

PLAN: Final = "plan/plan.json"
REJECTED: Final = "plan/rejected.jsonl"
RUN_STATS: Final = "stats.json"
CARD: Final = "README.md"
CONTACT_SHEET: Final = "contact-sheet.png"
EXTENSION: Final = {ImageFormat.PNG: "png", ImageFormat.WEBP: "webp", ImageFormat.JPEG: "jpg"}
FOLDER_METADATA: Final = "metadata.jsonl"
CHECKPOINTS: Final = "parts/"
"""The keys of all checkpoints begin with this."""
FAILED_ROWS: Final = ".failed.jsonl"
"""The end of the key of a checkpoint that lists failed rows."""
MAX_ROWS: Final = 10**9
"""A sample key has nine digits for the row number."""
MAX_TEXT_BYTES: Final = 256 << 20
"""No plan, row file, commit marker or list of failures is larger. Producers write no larger ones,
and workers, which may be sent to a store of any producer, read none."""
MAX_BINARY_BYTES: Final = 2 << 30
"""Largest archive or image that is read into memory. The worker makes the samples of a larger
archive again."""


def shard_name(number: int) -> str:
    return f"{number:05d}"


def sample_key(row: int, image: int) -> str:
    """Return the key of image `image` of input row `row`. Sorted keys have the input's order."""
    return f"{row:09d}-{image:02d}"


def plan_key(shard: str) -> str:
    return f"plan/{shard}.jsonl"


def checkpoints_folder(shard: str) -> str:
    """Return the folder of all checkpoints of the shard, also those made for another plan."""
    return f"{CHECKPOINTS}{shard}"


def checkpoints_prefix(shard: str, sha256: str) -> str:
    """Return the prefix of the shard's checkpoints for the rows with this SHA-256.

    The digest keeps them apart from checkpoints that were made for another plan.
    """
    return f"{checkpoints_folder(shard)}/{sha256[:12]}/"


def archive_key(shard: str) -> str:
    return f"{shard}.tar"


def parquet_key(shard: str) -> str:
    return f"{shard}.parquet"


def images_key(file_format: BulkFormat, shard: str) -> str | None:
    """Return the key of the file with all images of a shard; None if each image is a file."""
    if file_format is BulkFormat.FILES:
        return None
    return (parquet_key if file_format is BulkFormat.PARQUET else archive_key)(shard)


def file_key(shard: str, name: str) -> str:
    """Return the key of one file of a shard that is stored as plain files."""
    return f"{shard}/{name}"


def metadata_key(shard: str) -> str:
    return f"{shard}.jsonl"


def stats_key(shard: str) -> str:
    return f"{shard}.stats.json"
