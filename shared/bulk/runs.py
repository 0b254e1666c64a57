"""Store the records of bulk runs and their shards. Scripts in Redis change them atomically.

The Celery message of a shard lies in queues of its own, beside those of jobs. Claims and leases
work for it as for jobs. The destination decides what a dataset contains: if Redis loses records,
the same command restores them from there. This module uses neither stores nor Celery.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.bulk.records import (
    NO_RECORD,
    NewRun,
    RunStatus,
    ShardRecord,
    ShardTransition,
    parse_run_status,
    parse_shard_record,
    parse_shard_records,
    unreadable_run,
)
from imagefleet.shared.bulk.redis_keys import RunKeys, index_key, outbox_keys, run_keys
from imagefleet.shared.bulk.run_events import RunEvents, receiver_args
from imagefleet.shared.bulk.shard_message import ShardToSend, bulk_queue, pack_shard
from imagefleet.shared.bulk.stalled_runs import StalledRuns
from imagefleet.shared.bulk.transitions import ShardChange, ShardTransitions
from imagefleet.shared.errors import ImagefleetError, UnknownRun
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_for_add_ons
from imagefleet.shared.jobs.redis_keys import claims_key, leases_key
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types, read_key

if TYPE_CHECKING:
    from redis import Redis

_WITHOUT_MESSAGE: Final = (NO_RECORD, State.FAILED, State.CANCELLED)
"""States of a shard that has no message in a queue or in a claim."""


class RunRecords:
    """Reads and changes the records of the runs of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        """Store the connection. `retention_s`: seconds to keep the records of an ended run."""
        self._redis = client
        self._namespace = namespace
        self._index = index_key(namespace)
        self._retention_s = retention_s
        self.stalled = StalledRuns(client, namespace)
        self._transitions = ShardTransitions(client, namespace, retention_s)
        self.events = RunEvents(client, namespace)
        self._outbox = outbox_keys(namespace)
        load = partial(load_script, client, __package__, "run_events", outbox=True)
        self._start_script, self._finish_script = load("start_run"), load("finish_run")
        self._find_lost_script = load_script(client, __package__, "shard_record", "find_lost")

    def start(self, run: NewRun) -> None:
        """Create the run's record, or set an ended run to `running` again. Send no shard.

        An ended run counts the samples of its workers anew. A run keeps its receiver unless another
        one is given.
        """
        self._remove_expired()
        constant = chain.from_iterable(run.constant_fields.items())
        max_failures = "" if run.max_failures is None else run.max_failures
        self._start_script(
            keys=[*self._keys(run.id), self._index, *self._outbox],
            args=[run.id, max_failures, run.priority, *receiver_args(run.receiver), *constant],
        )

    def enqueue(self, run: NewRun, shards: Iterable[ShardToSend]) -> int:
        """Enqueue the shards that have no record, failed or were cancelled, and return their
        number. Counts of cancelled shards stay."""
        changes = ((each.number, self._queued(run, each, _WITHOUT_MESSAGE)) for each in shards)
        return len(self._transitions.apply_all(run.id, changes))

    def resend_lost(self, run: NewRun, shards: Iterable[ShardToSend]) -> int:
        """Enqueue the lost shards of a running run again. Return their number.

        A lost shard is not finished and has no message anywhere. This happens after a Redis
        failover that lost the message or the result, or if the sender died. Two callers at the same
        time may send a shard twice.

        The script reads all claims and all messages in the queues of `shards` at once: 10,000
        shards block Redis for 0.1 s.
        """
        by_number = {shard.number: shard for shard in shards}
        queues: set[str] = set()
        for height, width, names in {(s.height, s.width, s.add_ons) for s in by_number.values()}:
            queue = bulk_queue(self._namespace, run.model, height, width)
            queues |= {queue, list_for_add_ons(queue, names)} if names else {queue}
        keys = self._keys(run.id)
        lost = self._find_lost_script(
            keys=[keys.run, keys.shards, leases_key(self._namespace), *sorted(queues)],
            args=[run.id, claims_key(self._namespace, "")],
        )
        changes = (
            (shard, self._queued(run, by_number[shard], (state,), holder=attempt))
            for shard, state, attempt in cast(list[tuple[int, str, str]], lost)
            if shard in by_number
        )
        return len(self._transitions.apply_all(run.id, changes))

    def restart_shards(self, run: NewRun, shards: Iterable[ShardToSend]) -> int:
        """Enqueue shards whose files were deleted, whoever holds them, and reset their counts.

        Return the number of shards sent. Shards that are queued are not sent again.
        """
        from_states = (*_WITHOUT_MESSAGE, State.SUCCEEDED, State.RUNNING)
        changes = (
            (each.number, self._queued(run, each, from_states).with_counts(0, {}))
            for each in shards
        )
        return len(self._transitions.apply_all(run.id, changes))

    def withdraw(self, run: str, shards: Iterable[int]) -> list[int]:
        """Mark shards as cancelled: no worker touches their files until they are sent again.

        Return their numbers, without the shards that are queued or running. If the caller dies
        before it sends them, the recovery of stalled runs sends them. A caller that needs long
        before it sends them must therefore withdraw them again from time to time.
        """
        from_states = (*_WITHOUT_MESSAGE, State.SUCCEEDED)
        change = ShardChange(to_state=State.CANCELLED, from_states=from_states).with_counts(0, {})
        return self._transitions.apply_all(run, ((shard, change) for shard in shards))

    def mark_finished(self, run: str, shards: Iterable[tuple[int, int, Mapping[str, int]]]) -> None:
        """Record shards (number, samples, failed samples by error code) as succeeded, after their
        commit markers were found."""
        change = ShardChange(to_state=State.SUCCEEDED, from_states=_WITHOUT_MESSAGE)
        self._transitions.apply_all(
            run, ((shard, change.with_counts(done, reasons)) for shard, done, reasons in shards)
        )

    def begin(
        self, run: str, shard: int, attempt: str, worker: str, claim: tuple[str, str] = ("", "")
    ) -> ShardTransition:
        """Let `attempt` hold the shard, if `claim` (claims hash, tag) still exists.

        This fails if the run has stopped (the shard becomes cancelled), or if a worker with a lease
        has claimed another message of the shard. In both cases the caller acknowledges its message.
        """
        change = ShardChange(
            to_state=State.RUNNING,
            from_states=(NO_RECORD, State.QUEUED, State.RUNNING),
            attempt=attempt,
            worker=worker,
            claim=claim,
        )
        return self._transitions.apply(run, shard, change)

    def report_progress(
        self, run: str, shard: int, attempt: str, worker: str, done: int, failed: int
    ) -> bool:
        """Store the samples so far. Return False if the run has stopped: requeue the shard then.
        Raise LeaseLost if `attempt` does not hold the shard."""
        change = ShardChange(
            to_state=State.RUNNING, attempt=attempt, worker=worker, counts=f"{done}|{failed}"
        )
        transition = self._transitions.apply_as_holder(run, shard, attempt, change)
        return transition.run_state is State.RUNNING

    def succeed(
        self, run: str, shard: int, attempt: str, worker: str, done: int, reasons: Mapping[str, int]
    ) -> ShardTransition:
        """Record the shard as succeeded, after its commit marker was written.

        If this shard ends the run, the result has the run's terminal state. No other transition has
        it, so the caller writes the summary. `reasons`: failed samples by error code. Raise
        LeaseLost if `attempt` does not hold the shard.
        """
        change = ShardChange(to_state=State.SUCCEEDED, worker=worker).with_counts(done, reasons)
        return self._transitions.apply_as_holder(run, shard, attempt, change)

    def fail(
        self, run: str, shard: int, attempt: str, worker: str, samples: int, error: ImagefleetError
    ) -> ShardTransition:
        """Record that the whole shard, with its planned `samples`, failed. Raise LeaseLost if
        `attempt` does not hold it."""
        change = ShardChange(to_state=State.FAILED, worker=worker).with_error(worker, error)
        counted = change.with_counts(0, {error.code: samples})
        return self._transitions.apply_as_holder(run, shard, attempt, counted)

    def requeue(
        self, run: str, shard: int, attempt: str, worker: str, error: ImagefleetError | None = None
    ) -> ShardTransition:
        """Set the shard back to queued if `attempt` of `worker` holds it. The caller requeues its
        message, or acknowledges it if the run has stopped. `error`: why the worker could not make
        it."""
        change = ShardChange(to_state=State.QUEUED, from_states=(State.RUNNING,), holder=attempt)
        return self._transitions.apply(run, shard, change.with_error(worker, error))

    def shards_key(self, run: str) -> str:
        """Return the key of the hash of the shards' records."""
        return self._keys(run).shards

    def tries(self, run: str, shard: int) -> int:
        """Return how many attempts at the shard have begun."""
        text = cast(str | None, self._redis.hget(self._keys(run).shards, str(shard)))
        record = parse_shard_record(str(shard), text or "")
        return 0 if record is None else record.tries

    def holds(self, run: str, shard: int, attempt: str) -> bool:
        """Return whether `attempt` holds the shard. Call it just before its files are written."""
        record = cast(str | None, self._redis.hget(self._keys(run).shards, str(shard)))
        return record is not None and record.startswith(f"{State.RUNNING}|{attempt}|")

    def cancel(self, run: str) -> State:
        """Stop a run and return its state; workers release its shards between two batches. Raises
        UnknownRun, UnreadableRecord."""
        return self._finish(run, cancel=True)

    def finish_run(self, run: str) -> State:
        """Finish a running run if all its shards have ended, and return its state. Raises
        UnknownRun, UnreadableRecord."""
        return self._finish(run, cancel=False)

    def get(self, run: str) -> RunStatus:
        """Return the status of a run. Raises UnknownRun, UnreadableRecord."""
        keys = self._keys(run)
        with self._redis.pipeline(transaction=True) as pipe:
            for key in (keys.run, keys.workers, keys.reasons, keys.errors):
                pipe.hgetall(key)
            fields, *hashes = read_ignoring_wrong_types(pipe)
        if fields is None:
            raise unreadable_run(run, "its key holds something else")
        if not fields:
            raise _unknown(run)
        by_worker, reasons, errors = (each or {} for each in hashes)
        return parse_run_status(run, fields, by_worker, reasons, errors)

    def destination_and_shards(self, run: str) -> tuple[str, int] | None:
        """Return where a run is made and how many shards it has. None: there is no record.

        A damaged record has no shards.
        """
        key = self._keys(run).run
        fields = read_key(self._redis, lambda pipe: pipe.hmget(key, "destination", "shards"))
        destination, shards = cast(tuple[str | None, str | None], fields or (None, None))
        if destination is None or shards is None:
            return None
        return destination, int(shards) if re.fullmatch("[0-9]{1,9}", shards) else 0

    def shards(self, run: str) -> list[ShardRecord]:
        """Return the records of all shards that have a readable one, by number."""
        key = self._keys(run).shards
        records = read_key(self._redis, lambda pipe: pipe.hgetall(key)) or {}
        return sorted(parse_shard_records(run, records), key=attrgetter("shard"))

    def ids(self) -> list[str]:
        """Return the ids of the runs, the latest first. Some of their records may have expired."""
        return read_key(self._redis, lambda pipe: pipe.zrevrange(self._index, 0, -1)) or []

    def _keys(self, run: str) -> RunKeys:
        return run_keys(self._namespace, run)

    def _queued(
        self, run: NewRun, shard: ShardToSend, from_states: tuple[str, ...], holder: str = ""
    ) -> ShardChange:
        message = pack_shard(self._namespace, run, shard)
        return ShardChange(
            to_state=State.QUEUED, from_states=from_states, holder=holder, message=message
        )

    def _finish(self, run: str, *, cancel: bool) -> State:
        state = self._finish_script(
            keys=[*self._keys(run), *self._outbox], args=[int(cancel), self._retention_s]
        )
        if not state:
            raise _unknown(run)
        if state not in tuple(State):
            raise unreadable_run(run, f"its state is {state}")
        return State(cast(str, state))

    def _remove_expired(self) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for run in (runs := self.ids()):
                pipe.exists(self._keys(run).run)
            expired = [run for run, exists in zip(runs, pipe.execute(), strict=True) if not exists]
        if expired:
            self._redis.zrem(self._index, *expired)


def _unknown(run: str) -> UnknownRun:
    return UnknownRun(f"no run {run!r} in Redis: it was never started, or its record has expired")
