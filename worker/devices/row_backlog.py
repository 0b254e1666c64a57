"""Rows of the shards in hand, waiting for places in device batches.

Shards put rows in, from their threads; the intake takes slots out when the devices are free and no
job wants them. A batch may hold rows of several shards, so devices stay full across their borders.
Knows no Redis, no store and no file format.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.devices.work import Slot, Work
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.queues.claims import Claimed

_BATCHES_AHEAD: Final = 4
"""Of rows. With fewer another shard is wanted."""
_MOST_SHARDS: Final = 3
"""In hand: one on the devices, one behind it, one on its way to the store."""
_LONGEST_REST_S: Final = 300.0
_BATCHES_UNSTORED: Final = 6
"""Of pictures between the backlog and the spool: two on the devices, the others wait for encoders.
Beyond it no row begins, and memory does not grow; a row that has begun goes on, as its pictures are
stored together."""


@dataclass(kw_only=True, eq=False)
class RowWork(Work):
    """The pictures of one row of a dataset."""

    row: int
    alone: bool = False
    """It may have taken workers down: no mates in its batch."""

    def when_ended(self, tell: Callable[["RowWork"], None]) -> None:
        """Call `tell` once, in whichever thread ends it."""
        self._done.add_done_callback(lambda _: tell(self))


@dataclass(frozen=True, kw_only=True)
class RowSlot(Slot):
    work: RowWork


@dataclass(kw_only=True, eq=False)
class _ShardRows:
    """One shard's rows."""

    claimed: Claimed
    filled: bool = False
    waiting: deque[RowSlot] = field(default_factory=deque)
    open: set[RowWork] = field(default_factory=set)
    """Not ended yet."""
    taken: dict[RowWork, int] = field(default_factory=dict)
    """Pictures on the devices, or not in the spool yet."""

    def first(self) -> RowSlot | None:
        while self.waiting and self.waiting[0].work.ended:
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None

    def pop(self) -> RowSlot:
        slot = self.waiting.popleft()
        self.taken[slot.work] = self.taken.get(slot.work, 0) + 1
        return slot


class RowBacklog:
    """Any thread may call anything."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: pictures in a device batch."""
        self._capacity = capacity
        self._shelves: dict[str, _ShardRows] = {}
        self._closed = False
        self._rests_until = 0.0
        self._setbacks = 0
        self._lock = threading.Lock()

    def wants_shard(self) -> bool:
        """Whether another shard is needed to keep the devices busy."""
        with self._lock:
            rows = sum(len(shelf.waiting) for shelf in self._shelves.values())
            return (
                not self._closed
                and time.monotonic() >= self._rests_until
                and len(self._shelves) < _MOST_SHARDS
                and rows < _BATCHES_AHEAD * self._capacity
                and all(shelf.filled for shelf in self._shelves.values())
            )

    def rest(self) -> float:
        """This host could not make a shard: take none for a while, each time longer. Seconds."""
        with self._lock:
            pause_s = min(2.0**self._setbacks, _LONGEST_REST_S)
            self._setbacks += 1
            self._rests_until = time.monotonic() + pause_s
        return pause_s

    def went_well(self) -> None:
        """This host makes shards."""
        with self._lock:
            self._setbacks = 0

    def expect(self, claimed: Claimed) -> None:
        """A shard was claimed; its thread will `fill` it."""
        with self._lock:
            self._shelves[claimed.tag] = _ShardRows(claimed=claimed)

    def claimed(self, tag: str) -> Claimed:
        """Raises KeyError for a tag that was not expected."""
        return self._shelves[tag].claimed

    def fill(self, tag: str, works: Sequence[RowWork], *, last: bool = True) -> bool:
        """Let these rows of shard `tag` be painted. Not `last`: more will come, and no other shard
        is wanted meanwhile. False if none is taken any more."""
        with self._lock:
            if self._closed:
                return False
            shelf = self._shelves[tag]
            shelf.filled = last
            for work in works:
                shelf.open.add(work)
                shelf.waiting.extend(
                    RowSlot(work=work, index=index) for index in range(len(work.specs))
                )
        for work in works:
            work.when_ended(lambda ended: self._ended(shelf, ended))
        return True

    def leave(self, tag: str) -> None:
        """The shard is done with, one way or the other."""
        with self._lock:
            self._shelves.pop(tag, None)

    def take(self, room: int, shape: Shape | None = None) -> list[Slot]:
        """Up to `room` slots for one batch, of `shape` if jobs are in it already. Shards come in
        the order of their claims, so that the first one ends first; but a row that must be alone
        comes before all others: it is noted as tried, and whoever dies while it waits blames it."""
        batch: list[Slot] = []
        with self._lock:
            unstored = sum(sum(shelf.taken.values()) for shelf in self._shelves.values())
            begins = _BATCHES_UNSTORED * self._capacity - unstored
            if room > 0 and shape is None and (alone := self._alone(begins > 0)):
                first = alone.pop()
                rest = min(room, len(first.work.specs) - first.index) - 1
                return [first, *(alone.pop() for _ in range(rest))]
            for shelf in self._shelves.values():
                while len(batch) < room and (slot := shelf.first()):
                    if slot.work.alone or slot.work.shape != (shape or slot.work.shape):
                        break
                    if len(batch) >= begins and not slot.index:
                        break
                    shape = slot.work.shape
                    batch.append(shelf.pop())
        return batch

    def stored(self, tag: str, work: RowWork) -> None:
        """Its pictures are in memory no more."""
        with self._lock:
            if tag in self._shelves:
                self._shelves[tag].taken.pop(work, None)

    def has_rows(self) -> bool:
        with self._lock:
            return any(shelf.waiting for shelf in self._shelves.values())

    def tags(self) -> list[str]:
        """Of the shards in hand."""
        with self._lock:
            return list(self._shelves)

    def tags_in(self, batch: Iterable[Slot]) -> list[str]:
        """Of the shards with a row in `batch`."""
        works = {slot.work for slot in batch}
        with self._lock:
            return [tag for tag, shelf in self._shelves.items() if shelf.open & works]

    def close(self, error: ImagefleetError) -> None:
        """Take no more shards and rows; end those that no device has seen."""
        with self._lock:
            self._closed = True
            waiting = {slot.work for each in self._shelves.values() for slot in each.waiting}
        for work in waiting:
            work.abandon(error)

    def abandon(self, error: ImagefleetError) -> None:
        """End every row in hand. Its devices drop it."""
        with self._lock:
            rows = [work for shelf in self._shelves.values() for work in shelf.open]
        for work in rows:
            work.abandon(error)

    def _alone(self, may_begin: bool) -> _ShardRows | None:
        """The first shard whose next row must be alone, and goes on or `may_begin`."""
        for shelf in self._shelves.values():
            slot = shelf.first()
            if slot is not None and slot.work.alone and (slot.index or may_begin):
                return shelf
        return None

    def _ended(self, shelf: _ShardRows, work: RowWork) -> None:
        with self._lock:
            shelf.open.discard(work)
