"""One attempt at one shard: from its message to its files in the destination.

What the files hold depends on the plan and the model alone: two workers at one shard write the same
bytes. The commit marker is written last, so a shard that has one is whole.
"""

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Final, TypeVar

import redis

from imagefleet.shared.bulk.commit_markers import read_marker
from imagefleet.shared.bulk.file_layout import PLAN, plan_key, shard_name, stats_key
from imagefleet.shared.bulk.messages import ShardMessage
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.stats import RowFailure, ShardFile, ShardStats
from imagefleet.shared.bulk.summary import write_missing_summary, write_summary
from imagefleet.shared.errors import (
    CheckpointError,
    ImagefleetError,
    LeaseLost,
    PlanDamaged,
    StorageDenied,
    TooManyDeliveries,
    WorkerError,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.worker.bulk.checkpoints import ShardCheckpoints, delete_checkpoints
from imagefleet.worker.bulk.context import ShardContext
from imagefleet.worker.bulk.formats import put_shard
from imagefleet.worker.bulk.render_rows import RowRenderer
from imagefleet.worker.bulk.samples import Spool

log = logging.getLogger(__name__)

_MAX_TRIES_FACTOR: Final = 3
"""Times `max_deliveries` that a shard is tried before an error of hosts is taken for its own."""

T = TypeVar("T")


def make_shard(context: ShardContext, message: ShardMessage, tag: str) -> None:
    """See a claimed shard to its end, in this thread. How it ended is recorded, and its message
    acknowledged: Celery, which does that too, could not hold the record against it.

    Raises:
        LeaseLost: it went back to the queue, or is another worker's: not ours to acknowledge.
    """
    maker = _ShardMaker(context, message, tag)
    try:
        maker.run()
    except LeaseLost:
        maker.requeue()
        raise
    else:
        maker.acknowledge()
    finally:
        context.backlog.remove_shard(tag)


class _ShardMaker:
    def __init__(self, context: ShardContext, message: ShardMessage, tag: str) -> None:
        self.name = shard_name(message.shard)
        self._context = context
        self._tag = tag
        self._message = message
        self._attempt = context.claims.attempt(tag)
        self._holder = (message.run, message.shard, self._attempt, context.claims.worker)
        self._samples = 1
        """Planned; before the plan is read, some."""

    def run(self) -> None:
        """Raises LeaseLost: it goes back to the queue, if it is ours still."""
        try:
            self.make()
            self._context.backlog.reset_backoff()
        except LeaseLost:
            raise
        except (PlanDamaged, TooManyDeliveries) as error:
            self.fail(error)
        except redis.RedisError as error:  # says nothing about the shard
            log.warning("shard %s goes back to the queue: %s", self.name, error)
            raise LeaseLost(f"shard {self.name} goes back: {error}") from error
        except Exception as error:
            self._handle_host_failure(error)

    def make(self) -> None:
        """Raises LeaseLost, or why the shard cannot be made."""
        if not self._begin():
            return
        plan = self._read_plan()
        shard = self._find_shard(plan)
        if not self._record_if_finished(plan, shard):
            self._check_model(plan)
            with Spool() as spool:
                failures = self._generate(plan, shard, spool)
                self._store_shard(plan, shard, spool, failures)
        self._delete_checkpoints()

    def _read_plan(self) -> Plan:
        return self._retry(lambda: Plan.load(self._read(PLAN)), "reading the plan")

    def _delete_checkpoints(self) -> None:
        self._retry(lambda: delete_checkpoints(self._store, self.name), "clearing the parts")

    @cached_property
    def _store(self) -> ObjectStore:
        """Raises ConfigurationError if this host cannot open it."""
        return open_store(self._message.destination)

    def acknowledge(self) -> None:
        record = self._context.runs.shards_key(self._message.run)
        self._context.claims.ack(self._tag, record, shard=str(self._message.shard))

    def requeue(self) -> None:
        """Let another worker have it, unless its run has stopped. No row is to blame."""
        run, claims = self._context.runs, self._context.claims
        move = run.requeue(self._message.run, self._message.shard, self._attempt)
        stopped = move.happened and move.run_state is not State.RUNNING
        (claims.ack if stopped else claims.requeue)(self._tag)

    def _handle_host_failure(self, error: Exception) -> None:
        """The rows are not to blame: storage is away, or this host lacks room, rights or a library.
        Take none for a while; after many tries of anybody's the shard fails, unless it is only a
        matter of time. Raises LeaseLost."""
        if isinstance(error, OSError):  # its temporary folder is full
            error = StorageDenied(str(error))
        elif not isinstance(error, ImagefleetError):
            log.exception("shard %s failed in a way nobody thought of", self.name)
            error = WorkerError(f"{type(error).__name__}: {error}")
        tries = self._context.runs.tries(self._message.run, self._message.shard)
        passes = error.retryable and not isinstance(error, WorkerError)
        if not passes and tries >= _MAX_TRIES_FACTOR * self._context.max_deliveries:
            self.fail(error)
            return
        rest_s = self._context.backlog.back_off()
        log.error("shard %s goes to others, none taken for %.0f s: %s", self.name, rest_s, error)
        raise LeaseLost(f"shard {self.name} goes to others: {error}") from error

    def fail(self, error: ImagefleetError) -> None:
        """Record that the shard as a whole cannot be made. Raises LeaseLost."""
        log.error("shard %s cannot be made: %s", self.name, error)
        self._context.runs.fail(*self._holder, {error.code: self._samples})

    def _begin(self) -> bool:
        """False if there is nothing to do: it has ended or is another's, or its run has stopped or
        is forgotten."""
        move = self._context.runs.begin(*self._holder, (self._context.claims.key, self._tag))
        if move.before is State.SUCCEEDED:  # whoever finished it may not have lived to do the rest
            self._delete_checkpoints()
            if move.run_state is State.SUCCEEDED:
                plan = self._read_plan()
                self._retry(
                    lambda: write_missing_summary(self._store, plan), "the summary of the run"
                )
        if move.run_state is None:  # nothing that its message could be held against
            self._context.claims.ack(self._tag)
        return move.happened

    def _read(self, key: str) -> bytes:
        try:
            return self._store.get(key)
        except KeyError:
            raise PlanDamaged(f"{self._store.url}{key} is missing") from None

    def _find_shard(self, plan: Plan) -> ShardPlan:
        for shard in plan.shards:
            if shard.name == self.name:
                self._samples = shard.samples
                return shard
        raise PlanDamaged(f"the plan has no shard {self.name}")

    def _check_model(self, plan: Plan) -> None:
        mine = self._context.engine.info.digest
        if plan.model_digest not in (None, mine):
            raise CheckpointError(
                f"the plan was made for model {plan.model_digest}; this worker has {mine}"
            )

    def _record_if_finished(self, plan: Plan, shard: ShardPlan) -> bool:
        """Whether a worker died between the commit marker and its record. Then that is made up."""
        stats = read_marker(self._store, shard)
        if stats is not None:
            self._succeed(plan, stats)
        return stats is not None

    def _succeed(self, plan: Plan, stats: ShardStats) -> None:
        """Record it; whose shard completes the run writes what is told of the whole."""
        move = self._context.runs.succeed(*self._holder, stats.samples, stats.reasons())
        if move.run_state is State.SUCCEEDED:
            self._retry(lambda: write_summary(self._store, plan), "the summary of the run")

    def _generate(self, plan: Plan, shard: ShardPlan, spool: Spool) -> list[RowFailure]:
        data = self._retry(lambda: self._read(plan_key(self.name)), "reading its rows")
        rows = list(plan.read_rows(shard, data))
        checkpoints = ShardCheckpoints(self._store, shard)
        renderer = RowRenderer(
            self._context, self._tag, plan, shard, rows, checkpoints, spool, self._report
        )
        renderer.render()
        return [renderer.failures[row] for row in sorted(renderer.failures)]

    def _report(self, done: int, failed: int) -> None:
        if not self._context.runs.report_progress(*self._holder, done, failed):
            raise LeaseLost(f"shard {self.name}: its run has stopped")

    def _store_shard(
        self, plan: Plan, shard: ShardPlan, spool: Spool, failures: list[RowFailure]
    ) -> None:
        self._check_holder()
        put = self._retry(
            lambda: put_shard(spool, self.name, plan.format, self._store), "storing it"
        )
        stats = ShardStats(
            shard=self.name,
            plan_sha256=shard.sha256,
            model=self._context.engine.info.name,
            model_digest=self._context.engine.info.digest,
            samples=len(spool),
            failures=tuple(failures),
            files=tuple(ShardFile(key=f.key, sha256=f.sha256, size=f.size) for f in put),
        )
        self._check_holder()
        key = stats_key(self.name)
        self._retry(lambda: self._store.put(key, stats.dump(), "application/json"), key)
        self._succeed(plan, stats)
        log.info("shard %s: %d samples, %d failed", self.name, stats.samples, stats.failed)

    def _check_holder(self) -> None:
        """A host that stood still: on other hardware its bytes may differ from those stored."""
        if not self._context.runs.holds(*self._holder[:3]):
            raise LeaseLost(f"shard {self.name} is another worker's now")

    def _retry(self, act: Callable[[], T], what: str) -> T:
        return self._context.retry_while_unavailable(act, f"shard {self.name}: {what}")
