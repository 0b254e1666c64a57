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
from imagefleet.shared.bulk.summary import sum_up, summarise
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

_TRIES: Final = 3
"""Times `max_deliveries` that a shard is tried before an error of hosts is taken for its own."""

T = TypeVar("T")


def make_shard(workshop: ShardContext, message: ShardMessage, tag: str) -> None:
    """See a claimed shard to its end, in this thread. How it ended is recorded, and its message
    acknowledged: Celery, which does that too, could not hold the record against it.

    Raises:
        LeaseLost: it went back to the queue, or is another worker's: not ours to acknowledge.
    """
    making = _ShardMaker(workshop, message, tag)
    try:
        making.see_to_its_end()
    except LeaseLost:
        making.requeue()
        raise
    else:
        making.acknowledge()
    finally:
        workshop.backlog.leave(tag)


class _ShardMaker:
    def __init__(self, workshop: ShardContext, message: ShardMessage, tag: str) -> None:
        self.name = shard_name(message.shard)
        self._shop = workshop
        self._tag = tag
        self._message = message
        self._token = workshop.claims.attempt(tag)
        self._me = (message.run, message.shard, self._token, workshop.claims.worker)
        self._samples = 1
        """Planned; before the plan is read, some."""

    def see_to_its_end(self) -> None:
        """Raises LeaseLost: it goes back to the queue, if it is ours still."""
        try:
            self.make()
            self._shop.backlog.went_well()
        except LeaseLost:
            raise
        except (PlanDamaged, TooManyDeliveries) as error:
            self.fail(error)
        except redis.RedisError as error:  # says nothing about the shard
            log.warning("shard %s goes back to the queue: %s", self.name, error)
            raise LeaseLost(f"shard {self.name} goes back: {error}") from error
        except Exception as error:
            self.leave_to_others(error)

    def make(self) -> None:
        """Raises LeaseLost, or why the shard cannot be made."""
        if not self._begin():
            return
        plan = self._plan()
        shard = self._find(plan)
        if not self._was_finished(plan, shard):
            self._check_model(plan)
            with Spool() as spool:
                failures = self._paint(plan, shard, spool)
                self._put_together(plan, shard, spool, failures)
        self._clear()

    def _plan(self) -> Plan:
        return self._patiently(lambda: Plan.load(self._get(PLAN)), "reading the plan")

    def _clear(self) -> None:
        self._patiently(lambda: delete_checkpoints(self._store, self.name), "clearing the parts")

    @cached_property
    def _store(self) -> ObjectStore:
        """Raises ConfigurationError if this host cannot open it."""
        return open_store(self._message.destination)

    def acknowledge(self) -> None:
        record = self._shop.runs.shards_key(self._message.run)
        self._shop.claims.ack(self._tag, record, shard=str(self._message.shard))

    def requeue(self) -> None:
        """Let another worker have it, unless its run has stopped. No row is to blame."""
        run, claims = self._shop.runs, self._shop.claims
        move = run.requeue(self._message.run, self._message.shard, self._token)
        stopped = move.happened and move.run is not State.RUNNING
        (claims.ack if stopped else claims.requeue)(self._tag)

    def leave_to_others(self, error: Exception) -> None:
        """The rows are not to blame: storage is away, or this host lacks room, rights or a library.
        Take none for a while; after many tries of anybody's the shard fails, unless it is only a
        matter of time. Raises LeaseLost."""
        if isinstance(error, OSError):  # its temporary folder is full
            error = StorageDenied(str(error))
        elif not isinstance(error, ImagefleetError):
            log.exception("shard %s failed in a way nobody thought of", self.name)
            error = WorkerError(f"{type(error).__name__}: {error}")
        tries = self._shop.runs.tries(self._message.run, self._message.shard)
        passes = error.retryable and not isinstance(error, WorkerError)
        if not passes and tries >= _TRIES * self._shop.max_deliveries:
            self.fail(error)
            return
        rest_s = self._shop.backlog.rest()
        log.error("shard %s goes to others, none taken for %.0f s: %s", self.name, rest_s, error)
        raise LeaseLost(f"shard {self.name} goes to others: {error}") from error

    def fail(self, error: ImagefleetError) -> None:
        """Record that the shard as a whole cannot be made. Raises LeaseLost."""
        log.error("shard %s cannot be made: %s", self.name, error)
        self._shop.runs.fail(*self._me, {error.code: self._samples})

    def _begin(self) -> bool:
        """False if there is nothing to do: it has ended or is another's, or its run has stopped or
        is forgotten."""
        move = self._shop.runs.begin(*self._me, (self._shop.claims.key, self._tag))
        if move.before is State.SUCCEEDED:  # whoever finished it may not have lived to do the rest
            self._clear()
            if move.run is State.SUCCEEDED:
                plan = self._plan()
                self._patiently(lambda: sum_up(self._store, plan), "the summary of the run")
        if move.run is None:  # nothing that its message could be held against
            self._shop.claims.ack(self._tag)
        return move.happened

    def _get(self, key: str) -> bytes:
        try:
            return self._store.get(key)
        except KeyError:
            raise PlanDamaged(f"{self._store.url}{key} is missing") from None

    def _find(self, plan: Plan) -> ShardPlan:
        for shard in plan.shards:
            if shard.name == self.name:
                self._samples = shard.samples
                return shard
        raise PlanDamaged(f"the plan has no shard {self.name}")

    def _check_model(self, plan: Plan) -> None:
        mine = self._shop.engine.info.digest
        if plan.model_digest not in (None, mine):
            raise CheckpointError(
                f"the plan was made for model {plan.model_digest}; this worker has {mine}"
            )

    def _was_finished(self, plan: Plan, shard: ShardPlan) -> bool:
        """Whether a worker died between the commit marker and its record. Then that is made up."""
        stats = read_marker(self._store, shard)
        if stats is not None:
            self._succeed(plan, stats)
        return stats is not None

    def _succeed(self, plan: Plan, stats: ShardStats) -> None:
        """Record it; whose shard completes the run writes what is told of the whole."""
        move = self._shop.runs.succeed(*self._me, stats.samples, stats.reasons())
        if move.run is State.SUCCEEDED:
            self._patiently(lambda: summarise(self._store, plan), "the summary of the run")

    def _paint(self, plan: Plan, shard: ShardPlan, spool: Spool) -> list[RowFailure]:
        data = self._patiently(lambda: self._get(plan_key(self.name)), "reading its rows")
        rows = list(plan.read_rows(shard, data))
        parts = ShardCheckpoints(self._store, shard)
        painting = RowRenderer(self._shop, self._tag, plan, shard, rows, parts, spool, self._report)
        painting.paint()
        return [painting.failures[row] for row in sorted(painting.failures)]

    def _report(self, done: int, failed: int) -> None:
        if not self._shop.runs.progress(*self._me, done, failed):
            raise LeaseLost(f"shard {self.name}: its run has stopped")

    def _put_together(
        self, plan: Plan, shard: ShardPlan, spool: Spool, failures: list[RowFailure]
    ) -> None:
        self._check_still_ours()
        put = self._patiently(
            lambda: put_shard(spool, self.name, plan.format, self._store), "storing it"
        )
        stats = ShardStats(
            shard=self.name,
            plan_sha256=shard.sha256,
            model=self._shop.engine.info.name,
            model_digest=self._shop.engine.info.digest,
            samples=len(spool),
            failures=tuple(failures),
            files=tuple(ShardFile(key=f.key, sha256=f.sha256, size=f.size) for f in put),
        )
        self._check_still_ours()
        key = stats_key(self.name)
        self._patiently(lambda: self._store.put(key, stats.dump(), "application/json"), key)
        self._succeed(plan, stats)
        log.info("shard %s: %d samples, %d failed", self.name, stats.samples, stats.failed)

    def _check_still_ours(self) -> None:
        """A host that stood still: on other hardware its bytes may differ from those stored."""
        if not self._shop.runs.holds(*self._me[:3]):
            raise LeaseLost(f"shard {self.name} is another worker's now")

    def _patiently(self, act: Callable[[], T], what: str) -> T:
        return self._shop.retry_while_unavailable(act, f"shard {self.name}: {what}")
