"""The producer's handle of a bulk run: watch it, stop it, verify it, and send shards again.

Input: a plan, its store and a connection. Output: statuses and reports. The state of a run is in
its destination and in Redis, so it continues without a process of the producer.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from imagefleet.producer.bulk.regenerate import Regenerate
from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.producer.bulk.repair import damaged_files, damaged_shards, with_failed_rows
from imagefleet.producer.bulk.verify import OnShard, ignore, verify
from imagefleet.producer.bulk.verify_report import VerifyReport
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.connection.outages import OutageTolerance, deadline_of
from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.file_layout import (
    CARD,
    CONTACT_SHEET,
    RUN_STATS,
    checkpoints_prefix,
    stats_key,
)
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.records import NewRun, RunStatus
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.bulk.stats import RowFailure, ShardStats
from imagefleet.shared.bulk.summary import write_missing_summary
from imagefleet.shared.errors import (
    ResultTimeout,
    StorageDenied,
    StorageUnavailable,
    UnknownRun,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore

DEFAULT_PRIORITY: Final = 3
POLL_S: Final = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BulkRun:
    """The handle of a bulk run. It holds no state; another can be made from the destination."""

    id: str
    destination: str
    plan: Plan = field(repr=False)
    store: ObjectStore = field(repr=False, compare=False)
    connection: Connection = field(repr=False, compare=False)
    regenerate: Regenerate = field(repr=False, compare=False)

    def status(self) -> RunStatus:
        """Return the status of the run. Raise UnknownRun if Redis has no record of it."""
        with self.connection.runs() as runs:
            return runs.get(self.id)

    def statuses(
        self, every_s: float = POLL_S, *, deadline: float = float("inf")
    ) -> Iterator[RunStatus]:
        """Yield the status every `every_s` seconds, until the run has ended or `deadline` is past.

        Log a warning at the start if no worker is alive. `deadline` is a time of `time.monotonic`.
        Outages of Redis after its first answer are waited for, until the deadline.
        """
        for status, pause_s in self.polls(every_s, deadline=deadline):
            yield status
            time.sleep(pause_s)

    def polls(self, every_s: float, *, deadline: float) -> Iterator[tuple[RunStatus, float]]:
        """Yield what `statuses` yields, each with the seconds to wait before the next is wanted."""
        outages = OutageTolerance(deadline)
        status = outages.await_answer(self.status)
        if not status.done:
            outages.read(self.connection.warn_if_no_worker)
        while not status.done:
            left_s = max(0.0, deadline - time.monotonic())
            yield status, min(every_s, left_s)
            if not left_s:
                return
            status = outages.read(self.status) or status
        if status.state is State.SUCCEEDED:
            self._write_missing_summary()
        yield status, 0.0

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run has ended, in any state, and return its status.

        Raises:
            ResultTimeout: `timeout` seconds have passed; the run continues.
        """
        deadline = deadline_of(timeout)
        [last] = deque(self.statuses(deadline=deadline), maxlen=1)
        return last_or_raise(last, timeout)

    def cancel(self) -> State:
        """Stop the run and return its state. Workers release its shards between two batches.

        Finished samples stay.
        """
        with self.connection.runs() as runs:
            return runs.cancel(self.id)

    def verify(self, *, sample: int = 0, on_shard: OnShard = ignore) -> VerifyReport:
        """Check every file against the plan, and `sample` rows against images generated now.

        Args:
            on_shard: called after each shard with the numbers of checked shards and of problems.
        """
        return verify(self.plan, self.store, self.regenerate, sample=sample, on_shard=on_shard)

    def repair(self, report: VerifyReport) -> int:
        """Send the damaged shards of a report again, and return their number.

        Shards that have finished since then, unplanned files and damaged plans stay as they are.
        """
        shards = damaged_shards(self.plan, self.store, report)
        files = {shard.name: damaged_files(self.store, shard.name, report) for shard in shards}
        return self.resend(shards, files)

    def rejected(self) -> Iterator[dict[str, object]]:
        """Yield the rows that could not be planned: row, field, value, reason."""
        return read_rejected(self.store) if self.plan.rejected else iter(())

    def failures(self) -> Iterator[RowFailure]:
        """Yield the planned rows of finished shards that could not be generated."""
        for _, stats in self._finished(self.plan.shards):
            yield from stats.failures

    def retry_failed(self) -> int:
        """Send failed shards, shards with failed rows, and lost shards again. Return their
        number."""
        failed = [
            *(shard for shard, stats in self._finished(self.plan.shards) if stats.failures),
            *self._in_state(State.FAILED),
            *with_failed_rows(self.store, self._in_state(State.CANCELLED)),
        ]
        again = {shard.number: shard for shard in failed}
        return self._resend_lost() + self.resend(list(again.values()))

    def resend(
        self,
        shards: Sequence[ShardPlan],
        damaged_files: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> int:
        """Delete the commit markers and the `damaged_files` of shards, and send the shards again.

        Skip shards that are queued or running. Return the number of shards sent.

        The marker of a shard is deleted before its files. So if this is interrupted, workers make
        every shard again of which files are missing.

        If another producer resumes the run meanwhile, it may send a withdrawn shard. Then a worker
        may find its marker and record it as finished before the marker is deleted, or write it anew
        while the files are deleted. So the marker is deleted after the files, too, and these shards
        are restarted at the end, in whatever state they are.
        """
        if not shards:
            return 0
        options = self._current_options()
        with self.connection.runs() as runs:
            runs.start(self._new_run(options))
            withdrawn = set(runs.withdraw(self.id, (shard.number for shard in shards)))
            restarted = [shard for shard in shards if shard.number in withdrawn]
            for shard in restarted:
                checkpoints = self.store.list(checkpoints_prefix(shard.name, shard.sha256))
                failed_rows = [key for key in checkpoints if not key.endswith(".tar")]
                marker, files = stats_key(shard.name), damaged_files.get(shard.name, ())
                for key in (*failed_rows, marker, *files, marker):
                    # Each change delays the recovery of stalled runs, which would send the shard.
                    runs.withdraw(self.id, [shard.number])
                    self.store.delete(key)
        if restarted:
            for key in (RUN_STATS, CARD, CONTACT_SHEET):
                self.store.delete(key)
        self._enqueue(options, restarted=restarted)
        return len(restarted)

    def resume(self, *, max_failures: int | None, priority: int) -> None:
        """Send every shard that is neither finished nor queued nor running.

        A shard counts as finished only if its commit marker exists.
        """
        succeeded = self._in_state(State.SUCCEEDED)
        marked = {shard.name for shard, _ in self._finished(succeeded)}
        if unmarked := [shard for shard in succeeded if shard.name not in marked]:
            self.resend(unmarked)
        resumable = (State.RUNNING, State.CANCELLED)
        if len(marked) < len(self.plan.shards) or self.status().state in resumable:
            self._enqueue((max_failures, priority))
        if self.status().state is State.SUCCEEDED:
            self._write_missing_summary()

    def _write_missing_summary(self) -> None:
        """Write the summary if the last worker died before it did, and if this host may."""
        try:
            write_missing_summary(self.store, self.plan)
        except (StorageDenied, StorageUnavailable) as error:
            log.warning("the summary of run %s cannot be written from here: %s", self.id, error)

    def _enqueue(
        self, options: tuple[int | None, int], *, restarted: Sequence[ShardPlan] = ()
    ) -> None:
        """Start the run, and send its open shards and those in `restarted`.

        A shard without a record in Redis counts as finished if its commit marker exists.
        """
        run = self._new_run(options)
        with self.connection.runs() as runs:
            runs.start(run)
            runs.restart_shards(run, shards_to_send(self.plan, restarted))
            recorded = {record.shard for record in runs.shards(self.id)}
            unrecorded = [shard for shard in self.plan.shards if shard.number not in recorded]
            runs.mark_finished(
                self.id,
                [
                    (shard.number, stats.samples, stats.reasons())
                    for shard, stats in self._finished(unrecorded)
                ],
            )
            runs.resend_lost(run, shards_to_send(self.plan, self.plan.shards))
            runs.enqueue(run, shards_to_send(self.plan, self.plan.shards))
            runs.finish_run(self.id)

    def _resend_lost(self) -> int:
        """Send the shards that have no message or no record in Redis. Return their number.

        This happens after a failover or a restore of Redis, or if the producer died while sending.
        """
        try:
            status = self.status()
        except UnknownRun:
            return 0
        if status.done:
            return 0
        with self.connection.runs() as runs:
            return runs.resend_lost(status.as_new_run, shards_to_send(self.plan, self.plan.shards))

    def _finished(self, shards: Iterable[ShardPlan]) -> Iterator[tuple[ShardPlan, ShardStats]]:
        return finished_shards(self.store, self.plan, shards)

    def _in_state(self, state: State) -> list[ShardPlan]:
        with self.connection.runs() as runs:
            numbers = {record.shard for record in runs.shards(self.id) if record.state is state}
        return [shard for shard in self.plan.shards if shard.number in numbers]

    def _current_options(self) -> tuple[int | None, int]:
        """Return the current `max_failures` and priority of the run."""
        try:
            status = self.status()
        except UnknownRun:
            return None, DEFAULT_PRIORITY
        return status.max_failures, status.priority

    def _new_run(self, options: tuple[int | None, int]) -> NewRun:
        # Workers compare a message's destination with the recorded one, which may be spelled
        # otherwise, with another `region` for example.
        with self.connection.runs() as runs:
            known = runs.destination_and_shards(self.id)
        return NewRun(
            id=self.id,
            destination=self.destination if known is None else known[0],
            plan_digest=self.plan.digest,
            model=self.plan.model,
            shards=len(self.plan.shards),
            samples=self.plan.samples,
            max_failures=options[0],
            priority=options[1],
        )


def last_or_raise(last: RunStatus, timeout: float | None) -> RunStatus:
    """Return the last status of a run that has ended. Raise ResultTimeout if it has not."""
    if not last.done:
        raise ResultTimeout(f"run {last.id} has not ended after {timeout:g} s; it continues")
    return last
