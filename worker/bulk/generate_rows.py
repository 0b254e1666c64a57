"""Generate the rows of one shard, until each has its samples or a failure.

Input: the rows and the checkpoints of earlier attempts. Output: a full spool. Rows wait in the
backlog for the devices. Images are encoded as they arrive and wait on disk. Every few seconds new
samples are stored as a checkpoint. This module neither reads nor writes commit markers.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import Final

from imagefleet.shared.bulk.plan import Plan, ShardPlan, ShardRow
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import (
    ImagefleetError,
    LeaseLost,
    StorageDenied,
    StorageUnavailable,
    TooManyDeliveries,
)
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.bulk.row_conversion import (
    is_sample_of,
    row_failure,
    row_work,
    sample_keys,
)
from imagefleet.worker.bulk.row_encoder import RowEncoder, RowResult
from imagefleet.worker.bulk.row_input_feed import RowInputFeed
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.shard_checkpoints import ShardCheckpoints
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.devices.batching import first_suspect_delivery
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.jobs.attempt import offer_of

log = logging.getLogger(__name__)

_MAX_UNSAVED_BYTES: Final = 64 << 20
"""With more image bytes than this, a checkpoint is stored before it is due."""
_CHECK_INTERVAL_S: Final = 1.0
"""Seconds between two checks whether the run has stopped."""
_MAX_SUSPECT_TRIES: Final = 3
_SUSPECT_BATCHES: Final = 3
"""Batches of rows that may have been on the devices when their worker died: those that `DeviceLoop`
has in flight, and one that was being stored."""
_MAX_FRUITLESS_FACTOR: Final = 5
"""A shard fails after this factor times `max_deliveries` deliveries without a finished row.
Deliveries to preempted workers, where the shard only waited, count too."""

_REQUEUE_ERRORS: Final = (LeaseLost, StorageDenied, StorageUnavailable)
"""Errors of which a row is not the cause: its shard is requeued."""


class RowGenerator:
    """Generates the rows of one shard into the spool and `failures`. One thread uses it."""

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
        """Store the arguments.

        Args:
            tag: of the shard's claim.
            rows: all rows of the shard.
            report: called with the samples done and failed; it raises LeaseLost to end the attempt.
        """
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
        self._encoder = RowEncoder(context, self._rows, self._request)
        self._unsaved: list[str] = []
        self._unsaved_bytes = 0
        self._unsaved_failures: list[RowFailure] = []
        self._checkpoint_due = time.monotonic() + context.checkpoint_s
        self._check_due = time.monotonic() + _CHECK_INTERVAL_S
        self._deliveries = context.backlog.claim_of(tag).deliveries
        self._feed = RowInputFeed(
            context,
            request_of=lambda work: self._request(self._rows[work.row]),
            expect_row=self._expect_row,
            add_row=lambda work: self._add_rows([work], last=False),
        )

    def generate(self) -> None:
        """Load the checkpoints and generate the missing rows.

        Raises:
            LeaseLost: the shard must be requeued; finished samples are stored as checkpoints.
            TooManyDeliveries: too many workers died with this shard before a row was finished.
        """
        self._context.retry_while_unavailable(
            self._resume, f"shard {self._shard.name}: reading its checkpoints"
        )
        try:
            rest = self._isolate_suspects(self._missing_works())
            self._generate(rest)
        except BaseException:
            self._context.backlog.remove_shard(self._tag)
            raise
        self._checkpoint()

    def _resume(self) -> None:
        for failure in self._checkpoints.load(self._spool, self._as_planned):
            if failure.row in self._rows:
                self.failures[failure.row] = failure
        if len(self._spool) or self.failures:
            log.info("shard %s resumes; samples: %d", self._shard.name, len(self._spool))

    def _as_planned(self, sample: Sample) -> Sample | None:
        """Return a stored sample with the copied columns of its row, which decide nothing of its
        image. None: this shard's plan does not describe the image."""
        row, info = self._rows.get(sample.document["row"]), self._context.engine.info
        with suppress(ImagefleetError):
            if row and is_sample_of(sample, self._row_work(row), self._request(row), info):
                return replace(sample, document={**sample.document, "extra": row.extra})
        return None

    def _request(self, row: ShardRow) -> JobRequest:
        return self._plan.request(self._shard, row)

    def _row_work(self, row: ShardRow) -> RowWork:
        """Return the work for a row. Raise ImagefleetError if the model cannot generate it."""
        return row_work(row.row, self._request(row), self._context.engine.info, self._offers)

    def _missing_works(self) -> list[RowWork]:
        """Return the work for the rows that are missing. Record rows that cannot be generated."""
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
        """Generate suspect rows one at a time, after workers have died with this shard.

        Each row is recorded before it is tried alone, so the next worker knows which row killed
        this one. A row that has killed `_MAX_SUSPECT_TRIES` workers fails. Return the other rows'
        work.
        """
        recorded, max_deliveries = self._checkpoints.suspect_row(), self._context.max_deliveries
        suspects = [work for work in works if recorded and work.row == recorded[0]]
        tries = recorded[1] if recorded and suspects else 0
        if tries >= _MAX_SUSPECT_TRIES:
            error = TooManyDeliveries(f"{tries} workers died while they generated only this row")
            self._fail(self._rows[suspects[0].row], error)
            self._checkpoint()
            return [work for work in works if work not in suspects]
        if not suspects:
            if self._deliveries > _MAX_FRUITLESS_FACTOR * max_deliveries:
                raise TooManyDeliveries(f"{self._deliveries - 1} workers died with this shard")
            if self._deliveries >= first_suspect_delivery(max_deliveries):
                suspects = works[: _SUSPECT_BATCHES * self._context.engine.capacity]
        for work in suspects:
            work.alone = True
            self._context.retry_while_unavailable(
                partial(self._checkpoints.record_suspect_row, work.row, tries + 1),
                f"shard {self._shard.name}: recording a suspect row",
            )
            self._generate([work])
            self._checkpoint()
        return [work for work in works if not work.alone]

    def _generate(self, works: Sequence[RowWork]) -> None:
        for work in works:
            work.add_done_callback(self._encoder.submit)
        direct = self._feed.take(works)
        self._add_rows(direct, last=self._feed.all_started)
        due = len(direct)
        lost: ImagefleetError | None = None
        while due := due + self._start_fetches():
            result = self._next_result()
            due -= 1
            self._feed.release(result.work)
            result.work.release_images()
            self._context.backlog.release_row(self._tag, result.work)
            if isinstance(result.error, _REQUEUE_ERRORS):
                if lost is None:
                    lost = result.error
                    self._feed.stop()
                    self._context.backlog.abandon_not_started(self._tag, lost)
            elif result.error is not None:
                self._fail(self._rows[result.work.row], result.error)
            else:
                self._add(result.samples)
        if lost is not None:
            self._checkpoint()
            raise lost

    def _start_fetches(self) -> int:
        """Start to fetch the images of more rows, and return the number of these rows."""
        started = self._feed.start_fetches()
        if started and self._feed.all_started:
            self._add_rows([], last=True)
        return started

    def _expect_row(self, work: RowWork) -> None:
        if not self._context.backlog.expect_row(self._tag, work):
            work.abandon(LeaseLost("this worker is draining"))

    def _add_rows(self, works: Sequence[RowWork], *, last: bool) -> None:
        """Give rows to the devices. Abandon them if this worker takes no more."""
        if not self._context.backlog.add_rows(self._tag, works, last=last):
            for work in works:
                work.abandon(LeaseLost("this worker is draining"))

    def _next_result(self) -> RowResult:
        """Wait for the next result. Meanwhile store checkpoints and check the run when due."""
        while True:
            if time.monotonic() >= self._check_due:
                self._check_run()
            batch_unsaved = len(self._unsaved) >= self._context.engine.capacity
            if (
                (self._deliveries > 1 and batch_unsaved)
                or self._unsaved_bytes >= _MAX_UNSAVED_BYTES
                or time.monotonic() >= self._checkpoint_due
            ):
                self._checkpoint()
            try:
                due = min(self._checkpoint_due, self._check_due)
                return self._encoder.results.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                continue

    def _add(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._spool.add(sample)
            self._unsaved.append(sample.key)
            self._unsaved_bytes += len(sample.image)

    def _fail(self, row: ShardRow, error: ImagefleetError) -> None:
        log.warning("row %d cannot be generated: %s", row.row, error)
        failure = row_failure(self._plan, row, error)
        self.failures[row.row] = failure
        self._unsaved_failures.append(failure)

    def _check_run(self) -> None:
        """Report the samples so far, stored or not: checkpoints are too rare for a progress view.

        Raises:
            LeaseLost: the run has stopped, or another attempt holds the shard.
        """
        self._check_due = time.monotonic() + _CHECK_INTERVAL_S
        try:
            self._report_counts()
        except LeaseLost:
            self._save()
            raise

    def _checkpoint(self) -> None:
        """Store the new samples, from which a later attempt resumes, and report the counts."""
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
                f"shard {self._shard.name}: storing a checkpoint",
            )
            self._unsaved, self._unsaved_failures, self._unsaved_bytes = [], [], 0
            self._context.claims.reset_deliveries(self._message)
