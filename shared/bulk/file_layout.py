"""Where everything of a dataset lies in its destination, and how it is named.

    plan/plan.json         what is to be made; written last, so its presence says the plan is whole
    plan/00000.jsonl       the rows of shard 00000
    plan/rejected.jsonl    rows that cannot be painted, and why
    parts/00000/<sum>/…    what a shard in work has so far; gone once it is committed
    00000.tar              a finished shard (`webdataset`); 00000.parquet; 00000/<sample key>.png
    00000.jsonl            its metadata, one line a sample
    00000.stats.json       its commit marker, written last: counts, failures, SHA-256 of its files
    stats.json, README.md  of the whole run, once it is complete

Names only: nothing here reads or writes.
"""

import re
from typing import Final

PLAN: Final = "plan/plan.json"
REJECTED: Final = "plan/rejected.jsonl"
RUN_STATS: Final = "stats.json"
CARD: Final = "README.md"
MAX_ROWS: Final = 10**9
"""A sample key has nine digits for the row."""

_STATS: Final = re.compile(r"(\d{5,})\.stats\.json")


def shard_name(number: int) -> str:
    return f"{number:05d}"


def sample_key(row: int, image: int) -> str:
    """Of picture `image` of input row `row`; sorted, samples stand in the order of the input."""
    return f"{row:09d}-{image:02d}"


def plan_key(shard: str) -> str:
    return f"plan/{shard}.jsonl"


def checkpoints_folder(shard: str) -> str:
    """Of whatever attempts at that shard left, at the rows of another plan too."""
    return f"parts/{shard}"


def checkpoints_prefix(shard: str, sha256: str) -> str:
    """Of what attempts at the rows with that SHA-256 left: parts of another plan are not ours."""
    return f"{checkpoints_folder(shard)}/{sha256[:12]}/"


def archive_key(shard: str) -> str:
    return f"{shard}.tar"


def parquet_key(shard: str) -> str:
    return f"{shard}.parquet"


def file_key(shard: str, name: str) -> str:
    """Of one file of a shard kept as plain files."""
    return f"{shard}/{name}"


def metadata_key(shard: str) -> str:
    return f"{shard}.jsonl"


def stats_key(shard: str) -> str:
    return f"{shard}.stats.json"


def shard_of_stats(key: str) -> str | None:
    """The shard whose commit marker `key` is, if it is one."""
    found = _STATS.fullmatch(key)
    return found[1] if found else None
