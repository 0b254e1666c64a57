"""Write the row files of a plan in threads.

Input: collected rows of shards. Output: the row files, and what the plan says about them. This
module neither reads nor checks rows.
"""

import hashlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Self

from imagefleet.producer.bulk.plan_comparison import PlanComparison
from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.row_validation import Size
from imagefleet.shared.bulk.file_layout import MAX_TEXT_BYTES, REJECTED, plan_key
from imagefleet.shared.bulk.plan import ShardPlan
from imagefleet.shared.errors import PlanConflict
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

    If a plan exists already, it writes only row files of that plan that are missing, and those of
    appended rows. Without one, it checks the store before the first file.
    """

    def __init__(
        self,
        store: ObjectStore,
        comparison: PlanComparison | None,
        *,
        appends: bool = False,
    ) -> None:
        """
        Args:
            comparison: with the plan that exists already; None: there is none.
            appends: whether the shards behind those of the existing plan are written. It must be
                that these are as planned, or PlanConflict is raised before.
        """
        self._store = store
        self._comparison = comparison
        self._appends = appends
        self._compared: list[Future[ShardPlan]] = []
        """Shards of the existing plan that are compared, as long as none was appended."""
        existing = None if comparison is None else comparison.existing
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
        is_appended = self._comparison is not None and not self._comparison.is_planned(int(name))
        if is_appended and self._appends:
            self._check_compared()
        self._free_slots.acquire()
        if self._failed is not None:
            raise self._failed
        stored = None if self._comparison is None else self._comparison.next_stored(size)
        future = self._threads.submit(self._put_rows, name, size, shard, stored)
        if self._appends and not is_appended:
            self._compared.append(future)
        return future

    def _check_compared(self) -> None:
        """Wait for the shards of the existing plan. Raise PlanConflict if one differs."""
        for future in self._compared:
            future.result()
        self._compared.clear()
        if self._comparison is not None and (first := self._comparison.first) is not None:
            raise PlanConflict(
                f"{self._store.url} holds another plan: {first.sentence}; to append rows, give all "
                "rows of the dataset as they were, and the new ones behind them"
            )

    def put_rejected(self, rejected: RejectedRowsFile) -> None:
        """Write the list of rejected rows, if this may be a new plan."""
        if (self._missing is None or self._appends) and rejected.count:
            self._store.put_file(REJECTED, rejected.file, "application/jsonl")

    def _put_rows(
        self, name: str, size: Size, shard: OpenShard, stored: ShardPlan | None
    ) -> ShardPlan:
        try:
            planned = shard.describe(name, size)
            key, data = plan_key(name), shard.row_file
            check_size(key, len(data), MAX_TEXT_BYTES)
            if self._comparison is not None:
                self._comparison.add(stored, planned, shard.lines)
            if self._is_wanted(planned):
                self._store.put(key, data, "application/jsonl")
            return planned
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._free_slots.release()

    def _is_wanted(self, planned: ShardPlan) -> bool:
        if self._missing is None or (planned.name, planned.sha256) in self._missing:
            return True
        is_planned = self._comparison is None or self._comparison.is_planned(planned.number)
        return self._appends and not is_planned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
