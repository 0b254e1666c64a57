"""Send the shards of a bulk run: all open ones, those that failed, or some once more.

Input: a plan, its store and a connection. Output: messages of shards, and their records. What is
finished is read from the destination, whatever Redis has lost.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from imagefleet.producer.bulk.repair import with_failed_rows
from imagefleet.producer.connection.connection import Connection
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
from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.bulk.stats import ShardStats
from imagefleet.shared.bulk.summary import write_missing_summary
from imagefleet.shared.errors import (
    BrokerUnavailable,
    StorageDenied,
    StorageUnavailable,
    UnknownRun,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore

DEFAULT_PRIORITY: Final = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ShardSender:
    """Sends the shards of one run. It holds no state."""

    id: str
    destination: str
    plan: Plan
    store: ObjectStore
    connection: Connection

    def status(self) -> RunStatus:
        """Return the status of the run. Raise UnknownRun if Redis has no record of it."""
        with self.connection.runs(self.id) as runs:
            return runs.get(self.id)

    def send_failed(self) -> int:
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
        with self.connection.runs(self.id) as runs:
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

    def resume(
        self, *, max_failures: int | None, priority: int, receiver: RunReceiver | None
    ) -> None:
        """Send every shard that is neither finished nor queued nor running.

        A shard counts as finished only if its commit marker exists. A `receiver` takes the place of
        the one that the run has.
        """
        succeeded = self._in_state(State.SUCCEEDED)
        marked = {shard.name for shard, _ in self._finished(succeeded)}
        if unmarked := [shard for shard in succeeded if shard.name not in marked]:
            self.resend(unmarked)
        resumable = (State.RUNNING, State.CANCELLED)
        if len(marked) < len(self.plan.shards) or self.status().state in resumable:
            self._enqueue((max_failures, priority), receiver=receiver)
            receiver = None
        if self.status().state is State.SUCCEEDED:
            self.write_missing_summary()
        if receiver is not None:
            with self.connection.runs(self.id) as runs:
                runs.events.set_receiver(self.id, receiver)

    def write_missing_summary(self) -> None:
        """Write the summary, and report the end, if the last worker died before it did, and if this
        host may write there."""
        try:
            offers = self.connection.offers().values()
            licenses = {offer.digest: offer.model_license for offer in offers}
            write_missing_summary(self.store, self.plan, licenses)
        except (StorageDenied, StorageUnavailable) as error:
            log.warning("the summary of run %s cannot be written from here: %s", self.id, error)
            return
        # Workers report it later if Redis does not answer now.
        with suppress(BrokerUnavailable), self.connection.runs(self.id) as runs:
            runs.events.report_end(self.id)

    def _enqueue(
        self,
        options: tuple[int | None, int],
        *,
        restarted: Sequence[ShardPlan] = (),
        receiver: RunReceiver | None = None,
    ) -> None:
        """Start the run, and send its open shards and those in `restarted`.

        A shard without a record in Redis counts as finished if its commit marker exists.
        """
        run = replace(self._new_run(options), receiver=receiver)
        with self.connection.runs(self.id) as runs:
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
        with self.connection.runs(self.id) as runs:
            return runs.resend_lost(status.as_new_run, shards_to_send(self.plan, self.plan.shards))

    def _finished(self, shards: Iterable[ShardPlan]) -> Iterator[tuple[ShardPlan, ShardStats]]:
        return finished_shards(self.store, self.plan, shards)

    def _in_state(self, state: State) -> list[ShardPlan]:
        with self.connection.runs(self.id) as runs:
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
        with self.connection.runs(self.id) as runs:
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
