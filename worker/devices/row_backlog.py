"""The backlog: rows of the shards that this worker holds, waiting for slots in device batches.

Shards add rows from their threads. The dispatcher takes slots when the devices are free and no job
needs them. A batch may hold rows of several shards, so the devices stay full when one shard ends
and the next one starts. The backlog depends on neither Redis nor stores nor file formats.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefleet.shared.errors import ImagefleetError, LeaseLost
from imagefleet.shared.process.backoff import Jitter, backoff_s
from imagefleet.worker.devices.slots import Slot, Work
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.queues.claim_types import Claimed

_MIN_BATCHES_AHEAD: Final = 4
"""The worker wants at least this many batches of waiting rows. With fewer, the worker wants another
shard."""
_MAX_SHARDS: Final = 3
"""Shards that a worker holds: one on the devices, one behind it, one on its way to the store."""
_MIN_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 300.0
_MAX_BATCHES_UNSTORED: Final = 6
"""Batches of images between the backlog and the spool: two on the devices, the others wait for
encoders. Beyond it no row starts, so that memory does not grow. A row that has started continues,
because its images are stored together."""


@dataclass(kw_only=True, eq=False)
class RowWork(Work):
    """The images of one row of a dataset."""

    row: int

    def add_done_callback(self, callback: Callable[["RowWork"], None]) -> None:
        """Call `callback` once, in the thread that ends the work."""
        self._done.add_done_callback(lambda _: callback(self))


@dataclass(frozen=True, kw_only=True)
class RowSlot(Slot):
    """The place of one image of a row in a device batch."""

    work: RowWork


@dataclass(kw_only=True, eq=False)
class _ShardRows:
    """The rows of one shard."""

    claimed: Claimed
    complete: bool = False
    """All rows are added, or their images are being fetched. Until then this worker claims no other
    shard."""
    waiting: deque[RowSlot] = field(default_factory=deque)
    expected: set[RowWork] = field(default_factory=set)
    """Rows whose init images are being fetched. They have no slots yet."""
    unfinished: set[RowWork] = field(default_factory=set)
    """Expected and added rows that have not ended."""
    unstored: dict[RowWork, int] = field(default_factory=dict)
    """Number of images per row that are on the devices, or not in the spool yet."""

    def first(self) -> RowSlot | None:
        """Return the first slot that is still wanted."""
        while self.waiting and self.waiting[0].work.ended:
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None

    def not_started(self) -> set[RowWork]:
        """Return the rows that are expected, or have images waiting for a device."""
        return self.expected | {slot.work for slot in self.waiting}

    def pop(self) -> RowSlot:
        """Remove and return the first slot, and count its image as unstored."""
        slot = self.waiting.popleft()
        self.unstored[slot.work] = self.unstored.get(slot.work, 0) + 1
        return slot


class RowBacklog:
    """Holds the rows of up to `_MAX_SHARDS` shards. Safe to share between threads."""

    def __init__(self, capacity: int) -> None:
        """
        Args:
            capacity: images in a device batch.
        """
        self._capacity = capacity
        self._shards: dict[str, _ShardRows] = {}
        self._closed = False
        self._backoff_until = 0.0
        self._failures = 0
        self._lock = threading.Lock()

    def wants_shard(self) -> bool:
        """Return whether the devices need another shard to stay busy."""
        with self._lock:
            rows = sum(len(shard.waiting) for shard in self._shards.values())
            return (
                not self._closed
                and time.monotonic() >= self._backoff_until
                and len(self._shards) < _MAX_SHARDS
                and rows < _MIN_BATCHES_AHEAD * self._capacity
                and all(shard.complete for shard in self._shards.values())
            )

    def back_off(self) -> float:
        """Want no shard for a while, because this host could not make one. Return the seconds,
        which double with each failure in a row."""
        with self._lock:
            pause_s = backoff_s(
                self._failures, min_s=_MIN_BACKOFF_S, max_s=_MAX_BACKOFF_S, jitter=Jitter.NONE
            )
            self._failures += 1
            self._backoff_until = time.monotonic() + pause_s
        return pause_s

    def is_in_pause(self) -> bool:
        """Return whether this host wants no shard because it could not make one."""
        with self._lock:
            return not self._closed and time.monotonic() < self._backoff_until

    def end_pause(self) -> None:
        """Want shards again."""
        with self._lock:
            self._backoff_until = 0.0

    def reset_backoff(self) -> None:
        """Note that this host made a shard."""
        with self._lock:
            self._failures = 0

    def add_shard(self, claimed: Claimed) -> None:
        """Add a claimed shard. Its thread adds its rows with `add_rows`."""
        with self._lock:
            self._shards[claimed.tag] = _ShardRows(claimed=claimed)

    def claim_of(self, tag: str) -> Claimed:
        """Return the claim of shard `tag`.

        Raises:
            KeyError: no shard of that tag is held.
        """
        return self._shards[tag].claimed

    def expect_row(self, tag: str, work: RowWork) -> bool:
        """Note that a row of shard `tag` is added once its init image is fetched.

        Until then it is abandoned like the rows that wait for the devices.

        Returns:
            False if the backlog is closed or the shard was removed; it expects no rows then.
        """
        with self._lock:
            shard = self._shards.get(tag)
            if self._closed or shard is None:
                return False
            shard.expected.add(work)
            shard.unfinished.add(work)
        work.add_done_callback(lambda ended: self._remove_ended(shard, ended))
        return True

    def add_rows(self, tag: str, works: Sequence[RowWork], *, last: bool = True) -> bool:
        """Let the devices generate these rows of shard `tag`.

        Args:
            last: all rows of the shard are added now, or expected. Until one call says so, no other
                shard is wanted.

        Returns:
            False if the backlog is closed or the shard was removed; it takes no rows then.
        """
        with self._lock:
            shard = self._shards.get(tag)
            if self._closed or shard is None:
                return False
            shard.complete |= last
            shard.unfinished.update(works)
            shard.expected.difference_update(works)
            for work in works:
                shard.waiting.extend(
                    RowSlot(work=work, index=index) for index in range(len(work.specs))
                )
        for work in works:
            work.add_done_callback(lambda ended: self._remove_ended(shard, ended))
        return True

    def remove_shard(self, tag: str) -> None:
        """Remove shard `tag`, whether it was made or not. Abandon its unfinished rows."""
        with self._lock:
            shard = self._shards.pop(tag, None)
            rows = list(shard.unfinished) if shard else []
        for work in rows:
            work.abandon(LeaseLost("the attempt at its shard has ended"))

    def pop_slots(self, free_slots: int, shape: Shape | None = None) -> list[Slot]:
        """Remove and return up to `free_slots` slots for one batch; of `shape`, if jobs are in it.

        Shards come in the order of their claims, so that the first one ends first. But a row that
        runs alone comes before all others: it is already recorded as tried, and would be blamed if
        the worker died while it waits.
        """
        batch: list[Slot] = []
        with self._lock:
            unstored = sum(sum(shard.unstored.values()) for shard in self._shards.values())
            may_start = _MAX_BATCHES_UNSTORED * self._capacity - unstored
            if (
                free_slots > 0
                and shape is None
                and (alone := self._shard_with_lone_row(may_start > 0))
            ):
                first = alone.pop()
                more = min(free_slots, len(first.work.specs) - first.index) - 1
                return [first, *(alone.pop() for _ in range(more))]
            for shard in self._shards.values():
                while len(batch) < free_slots and (slot := shard.first()):
                    if slot.work.alone or slot.work.shape != (shape or slot.work.shape):
                        break
                    if len(batch) >= may_start and not slot.index:
                        break
                    shape = slot.work.shape
                    batch.append(shard.pop())
        return batch

    def release_row(self, tag: str, work: RowWork) -> None:
        """Note that the images of a row are no longer in memory."""
        with self._lock:
            if tag in self._shards:
                self._shards[tag].unstored.pop(work, None)

    def has_rows(self) -> bool:
        """Return whether rows wait for the devices."""
        with self._lock:
            return any(shard.waiting for shard in self._shards.values())

    def tags(self) -> list[str]:
        """Return the tags of all shards that are held."""
        with self._lock:
            return list(self._shards)

    def tags_in(self, batch: Iterable[Slot]) -> list[str]:
        """Return the tags of the shards with an unfinished row in `batch`."""
        works = {slot.work for slot in batch}
        with self._lock:
            return [tag for tag, shard in self._shards.items() if shard.unfinished & works]

    def close(self, error: ImagefleetError) -> None:
        """Take no more shards and rows. Abandon the rows that have images waiting for a device, or
        whose init images are being fetched."""
        with self._lock:
            self._closed = True
            rows = [work for shard in self._shards.values() for work in shard.not_started()]
        for work in rows:
            work.abandon(error)

    def abandon_not_started(self, tag: str, error: ImagefleetError) -> None:
        """Abandon those rows of shard `tag` that `close` would abandon."""
        with self._lock:
            rows = self._shards[tag].not_started() if tag in self._shards else set()
        for work in rows:
            work.abandon(error)

    def abandon(self, error: ImagefleetError, tags: Collection[str] | None = None) -> None:
        """Abandon every unfinished row, of the shards `tags` if given. The devices drop it."""
        with self._lock:
            shards = [s for tag, s in self._shards.items() if tags is None or tag in tags]
            rows = [work for shard in shards for work in shard.unfinished]
        for work in rows:
            work.abandon(error)

    def _shard_with_lone_row(self, may_start: bool) -> _ShardRows | None:
        """Return the first shard whose next row runs alone, if that row has started or
        `may_start`."""
        for shard in self._shards.values():
            slot = shard.first()
            if slot is not None and slot.work.alone and (slot.index or may_start):
                return shard
        return None

    def _remove_ended(self, shard: _ShardRows, work: RowWork) -> None:
        with self._lock:
            shard.unfinished.discard(work)
            shard.expected.discard(work)
