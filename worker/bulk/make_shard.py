"""Make one shard, from its message to its files in the destination.

Input: the claimed message of a shard. Output: its files, its commit marker and its record. The
files depend on the plan and the model alone, so two workers write the same bytes for one shard. The
commit marker is written last, so a shard that has one is complete.
"""

import logging
from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Final, TypeVar

import redis

from imagefleet.shared.bulk.commit_markers import read_marker
from imagefleet.shared.bulk.file_layout import checkpoints_folder, shard_name, stats_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.shard_message import ShardMessage
from imagefleet.shared.bulk.stats import RowFailure, ShardFile, ShardStats
from imagefleet.shared.bulk.summary import write_missing_summary, write_summary
from imagefleet.shared.errors import (
    ImagefleetError,
    InvalidRequest,
    LeaseLost,
    PlanDamaged,
    TooManyDeliveries,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.shared.text.printable import printable
from imagefleet.worker.bulk.add_on_queue import leave_to_holders
from imagefleet.worker.bulk.ended_shard import EndedShard
from imagefleet.worker.bulk.format_check import require_writable
from imagefleet.worker.bulk.generate_rows import RowGenerator
from imagefleet.worker.bulk.host_errors import as_host_error, is_of_store, may_pass
from imagefleet.worker.bulk.plan_check import (
    PlanReader,
    holds_add_ons,
    is_of_its_run,
    read_rows,
    require_model,
)
from imagefleet.worker.bulk.samples import Spool
from imagefleet.worker.bulk.shard_checkpoints import ShardCheckpoints
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.bulk.shard_formats import put_shard

log = logging.getLogger(__name__)

_MAX_TRIES_FACTOR: Final = 3
"""After this factor times `max_deliveries` attempts, an error of the hosts fails the shard."""

T = TypeVar("T")


def make_shard(context: ShardContext, message: ShardMessage, tag: str) -> None:
    """Make a claimed shard in this thread, record the result and acknowledge the message.

    Celery acknowledges messages too, but it cannot check the shard's record while doing so.

    Raises:
        LeaseLost: the shard was requeued, or another worker holds it. Do not acknowledge it.
    """
    maker = _ShardMaker(context, message, tag)
    try:
        maker.make_and_record()
    except LeaseLost:
        maker.requeue()
        raise
    else:
        maker.acknowledge()
    finally:
        context.backlog.remove_shard(tag)


class _ShardMaker:
    """Makes one shard in one attempt."""

    def __init__(self, context: ShardContext, message: ShardMessage, tag: str) -> None:
        self.name = shard_name(message.shard)
        self._context, self._message, self._tag = context, message, tag
        self._plan_reader = PlanReader(message.run, message.destination)
        self._attempt = context.claims.attempt(tag)
        self._holder = (message.run, message.shard, self._attempt, context.claims.worker)
        self._samples = context.backlog.claim_of(tag).images  # until the plan is read
        self._missing_add_ons: Collection[str] = ()  # of the plan
        self._spooled_bytes = 0  # of the samples that the store is to take
        self._ended = EndedShard(
            self.name,
            partial(context.runs.events.summing_up, message.run),
            lambda: self._store,
            self._read_plan,
            self._retry,
            {context.engine.info.digest: context.engine.info.model_license},
        )
        self._host_error: ImagefleetError | None = None
        """Why this host cannot make the shard."""

    def make_and_record(self) -> None:
        """Make the shard and record success or failure.

        Raises:
            LeaseLost: this attempt does not hold the shard, or the shard must be requeued.
        """
        try:
            self.make()
            self._context.backlog.reset_backoff()
        except LeaseLost:
            raise
        except (InvalidRequest, PlanDamaged, TooManyDeliveries) as error:
            self.fail(error)
        except redis.RedisError as error:  # the shard is not the cause
            log.warning("shard %s is requeued, because Redis failed: %s", self.name, error)
            raise LeaseLost(f"shard {self.name} is requeued: {error}") from error
        except Exception as error:
            self._handle_host_failure(error)

    def make(self) -> None:
        """Generate and store the shard, unless it is finished. Raise LeaseLost or any failure."""
        if not self._begin():
            return
        plan = self._retry(self._read_plan, "reading the plan")
        shard = plan.find_shard(self.name)
        self._samples = shard.samples
        if not self._record_if_finished(plan, shard):
            info = self._context.engine.info
            require_model(plan, info)
            require_writable(self._context, plan.format)
            if not holds_add_ons(plan, info):
                self._missing_add_ons = plan.add_ons
                raise LeaseLost(f"shard {self.name} is left to workers with its add-ons")
            with Spool() as spool:
                try:
                    failures = self._generate(plan, shard, spool)
                    self._store_shard(plan, shard, spool, failures)
                finally:
                    self._spooled_bytes = spool.size
        self._ended.delete_checkpoints()

    def _read_plan(self) -> Plan:
        """Return the plan of this shard's run. Raise PlanDamaged if the destination lacks it."""
        return self._plan_reader.read(self._store)

    @cached_property
    def _store(self) -> ObjectStore:
        """Return the store of the dataset.

        Raises:
            InvalidRequest: this worker may not write there. Nothing was opened.
            ConfigurationError: this host cannot open it.
        """
        self._context.destinations.check(self._message.destination)
        return open_store(self._message.destination)

    def acknowledge(self) -> None:
        record = self._context.runs.shards_key(self._message.run)
        self._context.claims.ack(self._tag, record, shard=str(self._message.shard))

    def requeue(self) -> None:
        """Requeue the shard and its message; acknowledge the message if the run has stopped."""
        runs, claims = self._context.runs, self._context.claims
        transition = runs.requeue(*self._holder, self._host_error)
        if transition.happened and transition.run_state is not State.RUNNING:
            claims.ack(self._tag)
        elif self._missing_add_ons:
            leave_to_holders(self._context, self._tag, self._missing_add_ons)
        else:
            claims.requeue(self._tag)

    def _handle_host_failure(self, error: Exception) -> None:
        """Requeue the shard and let this host claim none for a while, or fail the shard.

        After too many attempts of any host the shard fails, unless the error may pass.

        Raises:
            LeaseLost: the shard must be requeued, or this attempt does not hold it.
        """
        host_error = self._host_error = as_host_error(error, self.name)
        tries = self._context.runs.tries(self._message.run, self._message.shard)
        if not may_pass(host_error) and tries >= _MAX_TRIES_FACTOR * self._context.max_deliveries:
            self.fail(host_error)
            return
        pause_s = self._context.backlog.back_off()
        until, store = "", vars(self).get("_store")  # it may be what cannot be opened
        if store is not None and is_of_store(error):
            folder = checkpoints_folder(self.name)
            self._context.store_probe.watch(store, folder, self._spooled_bytes)
            until = ", or until the store can be written"
        log.error(
            "shard %s is requeued for other workers; this one claims none for %.0f s%s: %s",
            *(self.name, pause_s, until, host_error),
        )
        raise LeaseLost(f"shard {self.name} is requeued for other workers: {host_error}") from error

    def fail(self, error: ImagefleetError) -> None:
        """Record that the whole shard failed. Raise LeaseLost if this attempt does not hold it."""
        log.error("shard %s failed: %s", self.name, error)
        self._context.runs.fail(*self._holder, self._samples, error)

    def _begin(self) -> bool:
        """Record the start of this attempt. Return False if there is nothing to do.

        This is so if the shard has ended, another worker holds it, its run has stopped or has no
        record, or the message is not one of its run.
        """
        if not is_of_its_run(self._message, self._context.runs):
            log.error(
                "a message for shard %s in %s is dropped: run %s has no such shard there",
                self.name,
                printable(self._message.destination),
                printable(self._message.run),
            )
            self._context.claims.ack(self._tag)
            return False
        transition = self._context.runs.begin(*self._holder, (self._context.claims.key, self._tag))
        if transition.before is State.SUCCEEDED:  # the worker may have died right after that
            self._ended.delete_checkpoints()
            if transition.run_state is State.SUCCEEDED:
                self._ended.sum_up(write_missing_summary)
        if transition.run_state is None:  # `acknowledge` might requeue the message
            self._context.claims.ack(self._tag)
        return transition.happened

    def _record_if_finished(self, plan: Plan, shard: ShardPlan) -> bool:
        """Record success if the commit marker exists, and return whether it does.

        A worker may have died between writing the marker and recording it.
        """
        stats = read_marker(self._store, plan, shard)
        if stats is not None:
            self._succeed(stats)
        return stats is not None

    def _succeed(self, stats: ShardStats) -> None:
        """Record success, and write the summary if this shard completes the run."""
        transition = self._context.runs.succeed(*self._holder, stats.samples, stats.reasons())
        if transition.run_state is State.SUCCEEDED:
            self._ended.sum_up(write_summary)

    def _generate(self, plan: Plan, shard: ShardPlan, spool: Spool) -> list[RowFailure]:
        rows = self._retry(lambda: read_rows(plan, shard, self._store), "reading its rows")
        checkpoints = ShardCheckpoints(self._store, shard, plan.format, self._read_plan)
        generator = RowGenerator(
            self._context, self._tag, plan, shard, rows, checkpoints, spool, self._report
        )
        generator.generate()
        return [generator.failures[row] for row in sorted(generator.failures)]

    def _report(self, done: int, failed: int) -> None:
        if not self._context.runs.report_progress(*self._holder, done, failed):
            raise LeaseLost(f"the run of shard {self.name} has stopped")

    def _store_shard(
        self, plan: Plan, shard: ShardPlan, spool: Spool, failures: list[RowFailure]
    ) -> None:
        self._check_may_store()
        stored = self._retry(
            lambda: put_shard(spool, self.name, plan.format, self._store), "storing its files"
        )
        stats = ShardStats(
            shard=self.name,
            plan_sha256=shard.sha256,
            model=self._context.engine.info.name,
            model_digest=self._context.engine.info.digest,
            samples=len(spool),
            failures=tuple(failures),
            files=tuple(ShardFile(key=f.key, sha256=f.sha256, size=f.size) for f in stored),
        )
        self._check_may_store()
        key = stats_key(self.name)
        put_marker = partial(self._store.put, key, stats.dump(), "application/json")
        self._retry(put_marker, f"storing {key}")
        self._succeed(stats)
        log.info("shard %s: samples %d, failed %d", self.name, stats.samples, stats.failed)

    def _check_may_store(self) -> None:
        """Check that the shard is still wanted in the destination, from this attempt.

        Raises:
            LeaseLost: another attempt holds it, because this host was suspended. On other hardware
                its bytes may differ from those that are stored.
            PlanDamaged: the destination was emptied. The next dataset there may have the same rows,
                and would take the files of this shard for its own.
        """
        self._retry(self._read_plan, "reading the plan")
        if not self._context.runs.holds(*self._holder[:3]):
            raise LeaseLost(f"another worker holds shard {self.name} now")

    def _retry(self, act: Callable[[], T], what: str) -> T:
        return self._context.retry_while_unavailable(act, f"shard {self.name}: {what}")
