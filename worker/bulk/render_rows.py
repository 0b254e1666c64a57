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
from imagefleet.worker.bulk.rows import (
    row_failure,
    is_sample_of,
    sample_keys,
    encode_samples,
    row_work,
)
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.devices.batching import first_suspect_delivery
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.jobs.attempt import offer_of

log = logging.getLogger(__name__)

_MAX_UNSAVED_BYTES: Final = 64 << 20
"""A part that would be larger is kept before its time."""
_CHECK_INTERVAL_S: Final = 1.0
"""Between two looks whether the run goes on."""
_MAX_SUSPECT_TRIES: Final = 3
_SUSPECT_BATCHES: Final = 3
"""Of rows that may have been on the devices when their worker died: see `DeviceLoop`, and one
kept."""
_MAX_FRUITLESS_FACTOR: Final = 5
"""Times `max_deliveries` that a shard may come back before a row of it was painted. A shard that
only waited in the hands of a preempted worker is counted too."""


@dataclass(frozen=True, kw_only=True)
class _RowResult:
    """How a row's work ended."""

    work: RowWork
    samples: Sequence[Sample] = ()
    error: ImagefleetError | None = None


class RowRenderer:
    """Used by one thread; `failures` and the spool are what it leaves."""

    def __init__(
        self,
        context: ShardContext,
        tag: str,
        plan: Plan,
        shard: ShardPlan,
        rows: Sequence[ShardRow],
        checkpoints: ShardCheckpoints,
        spool: Spool,
        report: Callable[[int, int], None],
    ) -> None:
        """`report` is told the samples made and failed; it raises what ends the attempt."""
        self.failures: dict[int, RowFailure] = {}
        self._context = context
        self._tag = tag
        self._message = context.backlog.claim_of(tag).message
        self._plan = plan
        self._shard = shard
        self._rows = {row.row: row for row in rows}
        offer = offer_of(context.engine.info)
        self._offers = {offer.model: offer, DEFAULT_MODEL: offer}
        self._checkpoints = checkpoints
        self._spool = spool
        self._report = report
        self._results: SimpleQueue[_RowResult] = SimpleQueue()
        self._unsaved: list[str] = []
        self._unsaved_bytes = 0
        self._unsaved_failures: list[RowFailure] = []
        self._checkpoint_due = time.monotonic() + context.checkpoint_s
        self._check_due = time.monotonic() + _CHECK_INTERVAL_S
        self._deliveries = context.backlog.claim_of(tag).deliveries

    def render(self) -> None:
        """Go on from the parts, to the last row.

        Raises:
            LeaseLost: the rows were taken back; what was done is kept.
            TooManyDeliveries: ever more workers died with this shard before a row was done.
        """
        self._context.retry_while_unavailable(
            self._resume, f"shard {self._shard.name}: reading the parts"
        )
        try:
            rest = self._isolate_suspects(self._missing_works())
            self._generate(rest)
        except BaseException:
            self._context.backlog.remove_shard(self._tag)
            raise
        self._checkpoint()

    def _resume(self) -> None:
        for failure in self._checkpoints.load(self._spool, self._is_planned):
            if failure.row in self._rows:
                self.failures[failure.row] = failure
        if len(self._spool) or self.failures:
            log.info("shard %s goes on from sample %d", self._shard.name, len(self._spool))

    def _is_planned(self, sample: Sample) -> bool:
        """Whether a sample that was found is one of this shard's, as planned."""
        row = self._rows.get(sample.document["row"])
        with suppress(ImagefleetError):
            return row is not None and is_sample_of(
                sample, self._row_work(row), self._context.engine.info
            )
        return False

    def _row_work(self, row: ShardRow) -> RowWork:
        """Raises ImagefleetError if it cannot be painted."""
        return row_work(self._plan, self._shard, row, self._context.engine.info, self._offers)

    def _missing_works(self) -> list[RowWork]:
        """Of the rows that are missing and can be painted."""
        works = []
        for row in self._rows.values():
            done = all(key in self._spool for key in sample_keys(self._plan, row))
            if done or row.row in self.failures:
                continue
            try:
                works.append(self._row_work(row))
            except ImagefleetError as error:
                self._fail(row, error)
        return works

    def _isolate_suspects(self, works: list[RowWork]) -> list[RowWork]:
        """After workers have died with this shard: find the row that does it, noting each before it
        is tried alone. Returns the works that need not be tried so."""
        tried, most = self._checkpoints.suspect_row(), self._context.max_deliveries
        blamed = [work for work in works if tried and work.row == tried[0]]
        tries = tried[1] if tried and blamed else 0
        if tries >= _MAX_SUSPECT_TRIES:
            error = TooManyDeliveries(f"{tries} workers died with this row alone")
            self._fail(self._rows[blamed[0].row], error)
            self._checkpoint()
            return [work for work in works if work not in blamed]
        if self._deliveries > _MAX_FRUITLESS_FACTOR * most and not blamed:
            raise TooManyDeliveries(f"{self._deliveries - 1} workers died with this shard")
        suspects = blamed
        if self._deliveries >= first_suspect_delivery(most) and not blamed:
            suspects = works[: _SUSPECT_BATCHES * self._context.engine.capacity]
        for work in suspects:
            work.alone = True
            self._checkpoints.record_suspect_row(work.row, tries + 1 if work in blamed else 1)
            self._generate([work])
            self._checkpoint()
        return [work for work in works if not work.alone]

    def _generate(self, works: Sequence[RowWork]) -> None:
        for work in works:
            work.add_done_callback(self._submit_encoding)
        if not self._context.backlog.add_rows(self._tag, works):
            for work in works:
                work.abandon(LeaseLost("this worker takes no more"))
        lost: ImagefleetError | None = None
        for _ in works:
            result = self._next_result()
            self._context.backlog.release_row(self._tag, result.work)
            if isinstance(result.error, LeaseLost):
                lost = result.error
            elif result.error is not None:
                self._fail(self._rows[result.work.row], result.error)
            else:
                self._add(result.samples)
        if lost is not None:
            self._checkpoint()
            raise lost

    def _submit_encoding(self, work: RowWork) -> None:
        self._context.encoders.submit(self._encode, work)

    def _encode(self, work: RowWork) -> None:
        try:
            row = self._rows[work.row]
            samples = encode_samples(work, row, work.pictures(), self._plan, self._context.engine)
            self._results.put(_RowResult(work=work, samples=samples))
        except ImagefleetError as error:
            self._results.put(_RowResult(work=work, error=error))
        except Exception as error:
            log.exception("row %d failed in a way nobody thought of", work.row)
            failure = WorkerError(f"{type(error).__name__}: {error}")
            self._results.put(_RowResult(work=work, error=failure))

    def _next_result(self) -> _RowResult:
        """Keeps a part whenever one is due meanwhile, and looks whether the run goes on."""
        while True:
            if time.monotonic() >= self._check_due:
                self._check_run()
            careful = self._deliveries > 1 and len(self._unsaved) >= self._context.engine.capacity
            if (
                careful
                or self._unsaved_bytes >= _MAX_UNSAVED_BYTES
                or time.monotonic() >= self._checkpoint_due
            ):
                self._checkpoint()
            try:
                due = min(self._checkpoint_due, self._check_due)
                return self._results.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                continue

    def _add(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._spool.add(sample)
            self._unsaved.append(sample.key)
            self._unsaved_bytes += len(sample.image)

    def _fail(self, row: ShardRow, error: ImagefleetError) -> None:
        log.warning("row %d cannot be painted: %s", row.row, error)
        failure = row_failure(self._plan, row, error)
        self.failures[row.row] = failure
        self._unsaved_failures.append(failure)

    def _check_run(self) -> None:
        """Tell how far it is, kept or not: parts are too far apart to watch a run by.

        Raises LeaseLost: the run has stopped, or the shard is another's."""
        self._check_due = time.monotonic() + _CHECK_INTERVAL_S
        try:
            self._report_counts()
        except LeaseLost:
            self._save()
            raise

    def _checkpoint(self) -> None:
        """Whoever has the shard next goes on from here."""
        self._save()
        self._report_counts()

    def _report_counts(self) -> None:
        failed = sum(failure.samples for failure in self.failures.values())
        self._report(len(self._spool), failed)

    def _save(self) -> None:
        self._checkpoint_due = time.monotonic() + self._context.checkpoint_s
        if self._unsaved or self._unsaved_failures:
            samples = [self._spool[key] for key in self._unsaved]
            self._context.retry_while_unavailable(
                lambda: self._checkpoints.save(samples, self._unsaved_failures),
                f"shard {self._shard.name}: a part",
            )
            self._unsaved, self._unsaved_failures, self._unsaved_bytes = [], [], 0
            self._context.claims.reset_deliveries(self._message)
