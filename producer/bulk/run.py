"""A dataset being made, from the producer's side: start it, watch it, stop it, send parts again.

Goes in: rows, a destination, parameters. Comes out: a `BulkRun`, which lives in the destination and
in Redis and needs no process of the producer's to go on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefleet.producer.bulk.regenerate import Regenerate
from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.producer.bulk.repair import damaged_shards, shard_files
from imagefleet.producer.bulk.verify import VerifyReport, verify
from imagefleet.producer.connection import Connection
from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.file_layout import CARD, RUN_STATS, checkpoints_prefix, stats_key
from imagefleet.shared.bulk.messages import shard_to_send
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.records import NewRun, RunStatus
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.bulk.summary import write_missing_summary
from imagefleet.shared.errors import ResultTimeout, UnknownRun
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore

DEFAULT_PRIORITY: Final = 3
_POLL_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class BulkRun:
    """The handle of a run. Costs nothing to keep; make another from the destination at any time."""

    id: str
    destination: str
    plan: Plan = field(repr=False)
    store: ObjectStore = field(repr=False, compare=False)
    connection: Connection = field(repr=False, compare=False)
    regenerate: Regenerate = field(repr=False, compare=False)

    def status(self) -> RunStatus:
        """Where it stands. Raises UnknownRun if Redis has no record of it (any more)."""
        with self.connection.runs() as runs:
            return runs.get(self.id)

    def statuses(
        self, every_s: float = _POLL_S, *, deadline: float = float("inf")
    ) -> Iterator[RunStatus]:
        """Where it stands, time and again until it has ended or `deadline` is past (as of
        `time.monotonic`). Warns if no worker is alive when it begins."""
        status = self.status()
        if not status.done:
            self.connection.warn_if_no_worker()
        while not status.done:
            yield status
            if (now := time.monotonic()) >= deadline:
                return
            time.sleep(min(every_s, deadline - now))
            status = self.status()
        if status.state is State.SUCCEEDED:
            write_missing_summary(self.store, self.plan)
        yield status

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until it ends, however it ends.

        Raises:
            ResultTimeout: `timeout` seconds passed; the run goes on.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        *_, last = self.statuses(deadline=deadline)
        if not last.done:
            raise ResultTimeout(f"run {self.id} is not done after {timeout:g} s; it goes on")
        return last

    def cancel(self) -> State:
        """Stop it: workers put its shards down between batches. What is made stays."""
        with self.connection.runs() as runs:
            return runs.cancel(self.id)

    def verify(self, *, sample: int = 0) -> VerifyReport:
        """Hold every file against the plan, and `sample` rows against what the fleet paints now."""
        return verify(self.plan, self.store, self.regenerate, sample=sample)

    def repair(self, report: VerifyReport) -> int:
        """Have the shards with problems made again. How many there are."""
        shards = damaged_shards(self.plan, report)
        return self.resend(shards, lambda shard: shard_files(self.store, shard.name))

    def rejected(self) -> Iterator[dict[str, object]]:
        """Rows that could not be planned: row, field, value, reason."""
        return read_rejected(self.store)

    def failures(self) -> Iterator[RowFailure]:
        """Rows that were planned and could not be painted, as far as shards are finished."""
        for _, stats in finished_shards(self.store, self.plan.shards):
            yield from stats.failures

    def retry_failed(self) -> int:
        """Send the finished shards with failed rows once more, and those that were lost. How many
        went."""
        again = [
            shard
            for shard, stats in finished_shards(self.store, self.plan.shards)
            if stats.failures
        ]
        again += self._in_state(State.FAILED)
        return self._resend_lost() + self.resend(again)

    def resend(
        self,
        shards: Sequence[ShardPlan],
        damaged_files: Callable[[ShardPlan], Sequence[str]] = lambda shard: (),
    ) -> int:
        """Take the commit markers of `shards` away, and the files that are `damaged_files`, and have
        what is missing painted. Shards on their way or in work are left alone. How many went.

        Whoever resumes the run meanwhile may send a shard that was withdrawn here, and a worker may
        find it finished before its marker goes: it is sent anew after that in any case."""
        if not shards:
            return 0
        options = self._current_options()
        with self.connection.runs() as runs:
            runs.start(self._new_run(options))
            free = set(runs.withdraw(self.id, (shard.number for shard in shards)))
            again = [shard for shard in shards if shard.number in free]
            for shard in again:
                parts = self.store.list(checkpoints_prefix(shard.name, shard.sha256))
                told = [key for key in parts if not key.endswith(".tar")]  # what failed before
                for key in (*damaged_files(shard), *told, stats_key(shard.name)):
                    runs.withdraw(self.id, [shard.number])  # a sign of life: no worker steps in
                    self.store.delete(key)
        if again:
            for key in (RUN_STATS, CARD):
                self.store.delete(key)
        self._enqueue(options, anew=again)
        return len(again)

    def resume(self, *, max_failures: int | None, priority: int) -> None:
        """Send every shard that is neither finished nor on its way; finished is one whose commit
        marker still stands."""
        done = self._in_state(State.SUCCEEDED)
        stands = {shard.name for shard, _ in finished_shards(self.store, done)}
        if gone := [shard for shard in done if shard.name not in stands]:
            self.resend(gone)
        unsettled = (State.RUNNING, State.CANCELLED)
        if len(stands) < len(self.plan.shards) or self.status().state in unsettled:
            self._enqueue((max_failures, priority))
        if self.status().state is State.SUCCEEDED:
            write_missing_summary(self.store, self.plan)

    def _enqueue(self, options: tuple[int | None, int], *, anew: Sequence[ShardPlan] = ()) -> None:
        """Set the run going: every shard that is neither finished nor on its way, and those `anew`.
        Of shards that Redis has not heard of, those with a commit marker are finished."""
        run = self._new_run(options)
        with self.connection.runs() as runs:
            runs.start(run)
            runs.restart_shards(run, map(shard_to_send, anew))
            known = {record.shard for record in runs.shards(self.id)}
            unheard = [shard for shard in self.plan.shards if shard.number not in known]
            runs.mark_finished(
                self.id,
                [
                    (s.number, stats.samples, stats.reasons())
                    for s, stats in finished_shards(self.store, unheard)
                ],
            )
            runs.resend_lost(run, map(shard_to_send, self.plan.shards))
            runs.enqueue(run, map(shard_to_send, self.plan.shards))
            runs.finish_run(self.id)

    def _resend_lost(self) -> int:
        """Send the shards of which Redis has no message, or not even a record: it failed over, or
        was set back, or who sent them did not live to send all. How many."""
        try:
            status = self.status()
        except UnknownRun:
            return 0
        if status.done:
            return 0
        with self.connection.runs() as runs:
            return runs.resend_lost(status.as_new_run, map(shard_to_send, self.plan.shards))

    def _in_state(self, state: State) -> list[ShardPlan]:
        with self.connection.runs() as runs:
            found = {record.shard for record in runs.shards(self.id) if record.state is state}
        return [shard for shard in self.plan.shards if shard.number in found]

    def _current_options(self) -> tuple[int | None, int]:
        """Failures allowed and priority of the run so far."""
        try:
            status = self.status()
        except UnknownRun:
            return None, DEFAULT_PRIORITY
        return status.max_failures, status.priority

    def _new_run(self, options: tuple[int | None, int]) -> NewRun:
        return NewRun(
            id=self.id,
            destination=self.destination,
            plan_digest=self.plan.digest,
            model=self.plan.model,
            shards=len(self.plan.shards),
            samples=self.plan.samples,
            max_failures=options[0],
            priority=options[1],
        )
