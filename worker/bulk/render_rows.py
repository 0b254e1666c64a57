"""The rows of one shard, until there is a sample or a failure for each.

Goes in: the rows, and what other attempts left of them. Comes out: a full spool. Rows wait in the
backlog for the devices; pictures are encoded as they arrive and wait on disk; every few seconds
what is new is kept as a part. Knows no claims and no commit markers.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

from imagefleet.shared.bulk.plan import Plan, ShardPlan, ShardRow
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import ImagefleetError, LeaseLost, TooManyDeliveries, WorkerError
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.worker.bulk.checkpoints import ShardCheckpoints
from imagefleet.worker.bulk.context import ShardContext
from imagefleet.worker.bulk.rows import failure_of, is_sample_of, keys_of, samples_of, work_of
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.devices.batching import suspect_from
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.jobs.attempt import offer_of

log = logging.getLogger(__name__)

_PART_BYTES: Final = 64 << 20
"""A part that would be larger is kept before its time."""
_LOOKS_S: Final = 1.0
"""Between two looks whether the run goes on."""
_TRIES_ALONE: Final = 3
_BATCHES_ALONE: Final = 3
"""Of rows that may have been on the devices when their worker died: see `DeviceLoop`, and one
kept."""
_BARREN: Final = 5
"""Times `max_deliveries` that a shard may come back before a row of it was painted. A shard that
only waited in the hands of a preempted worker is counted too."""


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """How a row's work ended."""

    work: RowWork
    samples: Sequence[Sample] = ()
    error: ImagefleetError | None = None


class RowRenderer:
    """Used by one thread; `failures` and the spool are what it leaves."""

    def __init__(
        self,
        workshop: ShardContext,
        tag: str,
        plan: Plan,
        shard: ShardPlan,
        rows: Sequence[ShardRow],
        parts: ShardCheckpoints,
        spool: Spool,
        report: Callable[[int, int], None],
    ) -> None:
        """`report` is told the samples made and failed; it raises what ends the attempt."""
        self.failures: dict[int, RowFailure] = {}
        self._shop = workshop
        self._tag = tag
        self._message = workshop.backlog.claimed(tag).message
        self._plan = plan
        self._shard = shard
        self._rows = {row.row: row for row in rows}
        offer = offer_of(workshop.engine.info)
        self._offers = {offer.model: offer, DEFAULT_MODEL: offer}
        self._parts = parts
        self._spool = spool
        self._report = report
        self._ended: SimpleQueue[_Ended] = SimpleQueue()
        self._fresh: list[str] = []
        self._fresh_bytes = 0
        self._fresh_failures: list[RowFailure] = []
        self._due = time.monotonic() + workshop.checkpoint_s
        self._look_due = time.monotonic() + _LOOKS_S
        self._deliveries = workshop.backlog.claimed(tag).deliveries

    def paint(self) -> None:
        """Go on from the parts, to the last row.

        Raises:
            LeaseLost: the rows were taken back; what was done is kept.
            TooManyDeliveries: ever more workers died with this shard before a row was done.
        """
        self._shop.retry_while_unavailable(
            self._resume, f"shard {self._shard.name}: reading the parts"
        )
        try:
            rest = self._one_by_one(self._works())
            self._paint(rest)
        except BaseException:
            self._shop.backlog.leave(self._tag)
            raise
        self._keep()

    def _resume(self) -> None:
        for failure in self._parts.load(self._spool, self._is_ours):
            if failure.row in self._rows:
                self.failures[failure.row] = failure
        if len(self._spool) or self.failures:
            log.info("shard %s goes on from sample %d", self._shard.name, len(self._spool))

    def _is_ours(self, sample: Sample) -> bool:
        """Whether a sample that was found is one of this shard's, as planned."""
        row = self._rows.get(sample.document["row"])
        with suppress(ImagefleetError):
            return row is not None and is_sample_of(
                sample, self._work_of(row), self._shop.engine.info
            )
        return False

    def _work_of(self, row: ShardRow) -> RowWork:
        """Raises ImagefleetError if it cannot be painted."""
        return work_of(self._plan, self._shard, row, self._shop.engine.info, self._offers)

    def _works(self) -> list[RowWork]:
        """Of the rows that are missing and can be painted."""
        works = []
        for row in self._rows.values():
            done = all(key in self._spool for key in keys_of(self._plan, row))
            if done or row.row in self.failures:
                continue
            try:
                works.append(self._work_of(row))
            except ImagefleetError as error:
                self._fail(row, error)
        return works

    def _one_by_one(self, works: list[RowWork]) -> list[RowWork]:
        """After workers have died with this shard: find the row that does it, noting each before it
        is tried alone. Returns the works that need not be tried so."""
        tried, most = self._parts.alone(), self._shop.max_deliveries
        blamed = [work for work in works if tried and work.row == tried[0]]
        tries = tried[1] if tried and blamed else 0
        if tries >= _TRIES_ALONE:
            error = TooManyDeliveries(f"{tries} workers died with this row alone")
            self._fail(self._rows[blamed[0].row], error)
            self._keep()
            return [work for work in works if work not in blamed]
        if self._deliveries > _BARREN * most and not blamed:
            raise TooManyDeliveries(f"{self._deliveries - 1} workers died with this shard")
        suspects = blamed
        if self._deliveries >= suspect_from(most) and not blamed:
            suspects = works[: _BATCHES_ALONE * self._shop.engine.capacity]
        for work in suspects:
            work.alone = True
            self._parts.try_alone(work.row, tries + 1 if work in blamed else 1)
            self._paint([work])
            self._keep()
        return [work for work in works if not work.alone]

    def _paint(self, works: Sequence[RowWork]) -> None:
        for work in works:
            work.when_ended(self._encode_soon)
        if not self._shop.backlog.fill(self._tag, works):
            for work in works:
                work.abandon(LeaseLost("this worker takes no more"))
        lost: ImagefleetError | None = None
        for _ in works:
            ended = self._next_ended()
            self._shop.backlog.stored(self._tag, ended.work)
            if isinstance(ended.error, LeaseLost):
                lost = ended.error
            elif ended.error is not None:
                self._fail(self._rows[ended.work.row], ended.error)
            else:
                self._add(ended.samples)
        if lost is not None:
            self._keep()
            raise lost

    def _encode_soon(self, work: RowWork) -> None:
        self._shop.encoders.submit(self._encode, work)

    def _encode(self, work: RowWork) -> None:
        try:
            row = self._rows[work.row]
            samples = samples_of(work, row, work.pictures(), self._plan, self._shop.engine)
            self._ended.put(_Ended(work=work, samples=samples))
        except ImagefleetError as error:
            self._ended.put(_Ended(work=work, error=error))
        except Exception as error:
            log.exception("row %d failed in a way nobody thought of", work.row)
            failure = WorkerError(f"{type(error).__name__}: {error}")
            self._ended.put(_Ended(work=work, error=failure))

    def _next_ended(self) -> _Ended:
        """Keeps a part whenever one is due meanwhile, and looks whether the run goes on."""
        while True:
            if time.monotonic() >= self._look_due:
                self._look()
            careful = self._deliveries > 1 and len(self._fresh) >= self._shop.engine.capacity
            if careful or self._fresh_bytes >= _PART_BYTES or time.monotonic() >= self._due:
                self._keep()
            try:
                due = min(self._due, self._look_due)
                return self._ended.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                continue

    def _add(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._spool.add(sample)
            self._fresh.append(sample.key)
            self._fresh_bytes += len(sample.image)

    def _fail(self, row: ShardRow, error: ImagefleetError) -> None:
        log.warning("row %d cannot be painted: %s", row.row, error)
        failure = failure_of(self._plan, row, error)
        self.failures[row.row] = failure
        self._fresh_failures.append(failure)

    def _look(self) -> None:
        """Tell how far it is, kept or not: parts are too far apart to watch a run by.

        Raises LeaseLost: the run has stopped, or the shard is another's."""
        self._look_due = time.monotonic() + _LOOKS_S
        try:
            self._report_counts()
        except LeaseLost:
            self._save()
            raise

    def _keep(self) -> None:
        """Whoever has the shard next goes on from here."""
        self._save()
        self._report_counts()

    def _report_counts(self) -> None:
        failed = sum(failure.samples for failure in self.failures.values())
        self._report(len(self._spool), failed)

    def _save(self) -> None:
        self._due = time.monotonic() + self._shop.checkpoint_s
        if self._fresh or self._fresh_failures:
            samples = [self._spool[key] for key in self._fresh]
            self._shop.retry_while_unavailable(
                lambda: self._parts.save(samples, self._fresh_failures),
                f"shard {self._shard.name}: a part",
            )
            self._fresh, self._fresh_failures, self._fresh_bytes = [], [], 0
            self._shop.claims.reset_deliveries(self._message)
