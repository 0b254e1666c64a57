"""Write the row files of a plan in threads.

Input: collected rows of shards. Output: the row files, and what the plan says about them. This
module neither reads nor checks rows.
"""

import hashlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Self

from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.row_validation import Size
from imagefleet.shared.bulk.file_layout import MAX_TEXT_BYTES, REJECTED, plan_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.base import check_size

_WRITERS: Final = 8
_IN_FLIGHT: Final = 32
"""Row files that wait to be written; one with 1,000 prompts has about 100 KiB."""


@dataclass
class OpenShard:
    """The rows of a shard that more rows may join."""

    lines: list[str] = field(default_factory=list)
    samples: int = 0

    @property
    def row_file(self) -> bytes:
        """The content of the shard's row file."""
        return "\n".join((*self.lines, "")).encode()

    def describe(self, name: str, size: Size) -> ShardPlan:
        """Return what the plan says about the shard."""
        return ShardPlan(
            name=name,
            rows=len(self.lines),
            samples=self.samples,
            sha256=hashlib.sha256(self.row_file).hexdigest(),
            height=size[0],
            width=size[1],
        )


class PlanWriter:
    """Writes row files in threads, with a bounded number in flight.

    If a plan exists already, it writes only row files of that plan that are missing. Without one,
    it checks the store before the first file.
    """

    def __init__(self, store: ObjectStore, existing: Plan | None) -> None:
        self._store = store
        self._missing: set[tuple[str, str]] | None = None
        """Name and row digest of the shards to write; None means all."""
        if existing is not None:
            stored = set(store.list("plan/"))
            self._missing = {
                (shard.name, shard.sha256)
                for shard in existing.shards
                if plan_key(shard.name) not in stored
            }
        self._threads = ThreadPoolExecutor(_WRITERS, thread_name_prefix="plan")
        self._free_slots = threading.BoundedSemaphore(_IN_FLIGHT)
        self._failed: BaseException | None = None
        self._checked = existing is not None

    def put_rows(self, name: str, size: Size, shard: OpenShard) -> "Future[ShardPlan]":
        """Start to write a row file. Raise the error of an earlier file, if one failed."""
        if not self._checked:
            self._store.check()
            self._checked = True
        self._free_slots.acquire()
        if self._failed is not None:
            raise self._failed
        return self._threads.submit(self._put_rows, name, size, shard)

    def put_rejected(self, rejected: RejectedRowsFile) -> None:
        if self._missing is None and rejected.count:
            self._store.put_file(REJECTED, rejected.file, "application/jsonl")

    def _put_rows(self, name: str, size: Size, shard: OpenShard) -> ShardPlan:
        try:
            planned = shard.describe(name, size)
            key, data = plan_key(name), shard.row_file
            check_size(key, len(data), MAX_TEXT_BYTES)
            if self._missing is None or (name, planned.sha256) in self._missing:
                self._store.put(key, data, "application/jsonl")
            return planned
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._free_slots.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
