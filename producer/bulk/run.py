"""The producer's handle of a bulk run: watch it, stop it, verify it, and send shards again.

Input: a plan, its store and a connection. Output: statuses and reports. The state of a run is in
its destination and in Redis, so it continues without a process of the producer.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from imagefleet.producer.bulk.regenerate import Regenerate
from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.producer.bulk.repair import damaged_files, damaged_shards
from imagefleet.producer.bulk.shard_sender import ShardSender
from imagefleet.producer.bulk.verify import OnShard, ignore, verify
from imagefleet.producer.bulk.verify_report import VerifyReport
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.connection.outages import OutageTolerance, deadline_of
from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import ResultTimeout
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore

POLL_S: Final = 0.5


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
        with self.connection.runs(self.id) as runs:
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
            self._sender.write_missing_summary()
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
        with self.connection.runs(self.id) as runs:
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
        for _, stats in finished_shards(self.store, self.plan, self.plan.shards):
            yield from stats.failures

    def retry_failed(self) -> int:
        """Send failed shards, shards with failed rows, and lost shards again. Return their
        number."""
        return self._sender.send_failed()

    def resend(
        self,
        shards: Sequence[ShardPlan],
        damaged_files: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> int:
        """Delete the commit markers and the `damaged_files` of shards, and send the shards again.

        Skip shards that are queued or running. Return the number of shards sent.
        """
        return self._sender.resend(shards, damaged_files)

    def resume(
        self, *, max_failures: int | None, priority: int, receiver: RunReceiver | None = None
    ) -> None:
        """Send every shard that is neither finished nor queued nor running.

        A shard counts as finished only if its commit marker exists. A `receiver` takes the place of
        the one that the run has.
        """
        self._sender.resume(max_failures=max_failures, priority=priority, receiver=receiver)

    @property
    def _sender(self) -> ShardSender:
        return ShardSender(
            id=self.id,
            destination=self.destination,
            plan=self.plan,
            store=self.store,
            connection=self.connection,
        )


def last_or_raise(last: RunStatus, timeout: float | None) -> RunStatus:
    """Return the last status of a run that has ended. Raise ResultTimeout if it has not."""
    if not last.done:
        raise ResultTimeout(f"run {last.id} has not ended after {timeout:g} s; it continues")
    return last
