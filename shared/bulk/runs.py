"""Runs and their shards in Redis: a record a shard, every change a compare-and-set on the server.

    <namespace>:bulk                  sorted set: run by the time it began
    <namespace>:bulk:looked           string: no other search for still runs is due
    <namespace>:bulk:still            set: runs found then, and given to nobody yet
    <namespace>:bulk:<run>            hash: what it is, its state, its counts, its last move
    <namespace>:bulk:<run>:shards     hash: shard number to `state|attempt|worker|done|failed|tries`
    <namespace>:bulk:<run>:workers    hash: worker to samples it made
    <namespace>:bulk:<run>:reasons    hash: shard number to its failed samples by error code (JSON)

A shard travels as a Celery message beside the jobs', on queues of its own, so the workers' claims
and leases hold for it as they do for jobs. The truth of a dataset is in its destination: what Redis
loses, running the same command again brings back. Knows no store and no Celery.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.bulk.messages import ShardToSend, bulk_queue, pack_shard
from imagefleet.shared.bulk.records import (
    NO_RECORD,
    NewRun,
    RunStatus,
    ShardRecord,
    ShardTransition,
    parse_shard_record,
    parse_run_status,
)
from imagefleet.shared.bulk.redis_keys import (
    RunKeys,
    index_key,
    search_throttle_key,
    run_key,
    run_keys,
    stalled_runs_key,
)
from imagefleet.shared.bulk.transitions import ShardChange, ShardTransitions
from imagefleet.shared.errors import UnknownRun
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import claims_key, leases_key
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_WITHOUT_MESSAGE: Final = (NO_RECORD, State.FAILED, State.CANCELLED)
"""States in which no message of the shard is on its way."""


class RunRecords:
    """The runs of one namespace. Safe to share between threads."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        self._redis = client
        self._namespace = namespace
        self._index = index_key(namespace)
        self._retention_s = retention_s
        self._transitions = ShardTransitions(client, namespace, retention_s)
        self._finish_script = load_script(client, __package__, "finish_run")
        self._find_lost_script = load_script(client, __package__, "find_lost")
        self._find_stalled_script = load_script(client, __package__, "find_stalled")

    def start(self, run: NewRun) -> None:
        """Make the run's record, or set one that has ended going again. Sends no shard."""
        self._remove_expired()
        keys = self._keys(run.id)
        now = self._redis.time()[0]
        fixed = {
            "destination": run.destination,
            "plan_digest": run.plan_digest,
            "model": run.model or "",
            "shards": run.shards,
            "samples": run.samples,
            "started_at": now,
        }
        most = "" if run.max_failures is None else run.max_failures
        with self._redis.pipeline(transaction=True) as pipe:
            for field, value in fixed.items():
                pipe.hsetnx(keys.run, field, str(value))
            pipe.hset(
                keys.run,
                mapping={
                    "state": State.RUNNING.value,
                    "max_failures": most,
                    "priority": run.priority,
                    "moved_at": now,
                },
            )
            pipe.hdel(keys.run, "finished_at")
            for each in keys:
                pipe.persist(each)
            pipe.zadd(self._index, {run.id: now}, nx=True)
            pipe.execute()

    def enqueue(self, run: NewRun, shards: Iterable[ShardToSend]) -> int:
        """Send shards to the workers: those without a record, and those that failed or were
        cancelled. What was done of the latter still counts. How many went."""
        sent = ((shard[0], self._queued(run, shard, _WITHOUT_MESSAGE)) for shard in shards)
        return len(self._transitions.apply_all(run.id, sent))

    def resend_lost(self, run: NewRun, shards: Iterable[ShardToSend]) -> int:
        """Send again those of a run under way that are to be made while no message of theirs is
        anywhere: a Redis that failed over forgot it, or how they ended, or whoever was to send them
        did not live to. How many went. Two who do this at once may send a shard twice.

        Reads all claims and all messages in the queues of `shards` in one go: 10,000 shards keep
        Redis busy for 0.1 s.
        """
        by_number = {shard[0]: shard for shard in shards}
        sizes = {shard[2:] for shard in by_number.values()}
        queues = {bulk_queue(self._namespace, run.model, *size) for size in sizes}
        keys = self._keys(run.id)
        found = self._find_lost_script(
            keys=[keys.run, keys.shards, leases_key(self._namespace), *sorted(queues)],
            args=[run.id, claims_key(self._namespace, "")],
        )
        again = (
            (shard, self._queued(run, by_number[shard], (state,), holder=attempt))
            for shard, state, attempt in cast(list[tuple[int, str, str]], found)
            if shard in by_number
        )
        return len(self._transitions.apply_all(run.id, again))

    def find_stalled(self, for_s: float) -> str | None:
        """A run under way in which nothing has moved for so long, if there is one: look after it,
        as `resend_lost` and `finish_run` do. Nobody else is told of it until it has been still for twice
        as long, or for 10 minutes more: whoever dies over it takes no other run with it, nor that
        one for long."""
        found = self._find_stalled_script(
            keys=[
                self._index,
                search_throttle_key(self._namespace),
                stalled_runs_key(self._namespace),
            ],
            args=[run_key(self._namespace, ""), for_s],
        )
        return cast(str | None, found)

    def release_stalled(self, run: str) -> None:
        """Of a run that `find_stalled` gave and that could not be looked after here: somebody else is told
        of it at the next search."""
        self._redis.hdel(self._keys(run).run, "looked_at")

    def restart_shards(self, run: NewRun, shards: Iterable[ShardToSend]) -> int:
        """Send shards whose files were taken away, whoever has worked on them meanwhile: what was
        made of them counts no more. How many went: not those whose message waits."""
        from_states = (*_WITHOUT_MESSAGE, State.SUCCEEDED, State.RUNNING)
        sent = (
            (shard[0], self._queued(run, shard, from_states).with_counts(0, {})) for shard in shards
        )
        return len(self._transitions.apply_all(run.id, sent))

    def withdraw(self, run: str, shards: Iterable[int]) -> list[int]:
        """Count shards as cancelled, so that no worker touches their files until they are sent
        again. Which: not those on their way or in work. Whoever does not live to send them is made
        up for when nothing has moved in the run for a while: so withdraw them again while it takes
        long to come to that."""
        asked = ShardChange(
            to_state=State.CANCELLED, from_states=(*_WITHOUT_MESSAGE, State.SUCCEEDED)
        )
        return self._transitions.apply_all(
            run, ((shard, asked.with_counts(0, {})) for shard in shards)
        )

    def mark_finished(self, run: str, shards: Iterable[tuple[int, int, Mapping[str, int]]]) -> None:
        """Record shards (number, samples, failed samples by error code) whose commit markers were
        found."""
        found = ShardChange(to_state=State.SUCCEEDED, from_states=_WITHOUT_MESSAGE)
        self._transitions.apply_all(
            run, ((shard, found.with_counts(done, reasons)) for shard, done, reasons in shards)
        )

    def begin(
        self, run: str, shard: int, attempt: str, worker: str, claim: tuple[str, str] = ("", "")
    ) -> ShardTransition:
        """A worker takes the shard; `claim` (claims hash, tag) must still stand. Not if the run has
        stopped: then the shard is recorded as cancelled, and its message can go. Nor if a living
        worker claims another message of the shard: it goes on, and this message can go."""
        taken = ShardChange(
            to_state=State.RUNNING,
            from_states=(NO_RECORD, State.QUEUED, State.RUNNING),
            attempt=attempt,
            worker=worker,
            claim=claim,
        )
        return self._transitions.apply(run, shard, taken)

    def report_progress(
        self, run: str, shard: int, attempt: str, worker: str, done: int, failed: int
    ) -> bool:
        """Note how many samples there are. False when the run has stopped: hand it back.

        Raises:
            LeaseLost: another attempt has the shard, or nobody does.
        """
        noted = ShardChange(
            to_state=State.RUNNING, attempt=attempt, worker=worker, counts=f"{done}|{failed}"
        )
        return self._transitions.apply_as_holder(run, shard, attempt, noted).run is State.RUNNING

    def succeed(
        self,
        run: str,
        shard: int,
        attempt: str,
        worker: str,
        done: int,
        reasons: Mapping[str, int],
    ) -> ShardTransition:
        """The commit marker stands. `reasons` are failed samples by error code.

        The move that completes the run, and only that one, answers with the run succeeded or
        failed: whoever made it writes the summary. Raises LeaseLost.
        """
        ended = ShardChange(to_state=State.SUCCEEDED, worker=worker).with_counts(done, reasons)
        return self._transitions.apply_as_holder(run, shard, attempt, ended)

    def fail(
        self, run: str, shard: int, attempt: str, worker: str, reasons: Mapping[str, int]
    ) -> ShardTransition:
        """The shard as a whole cannot be made. Raises LeaseLost."""
        ended = ShardChange(to_state=State.FAILED, worker=worker).with_counts(0, reasons)
        return self._transitions.apply_as_holder(run, shard, attempt, ended)

    def requeue(self, run: str, shard: int, attempt: str) -> ShardTransition:
        """The worker gives the shard back, if it still has it; its message must go back to the
        queue too, unless the run has stopped: then it must go."""
        back = ShardChange(to_state=State.QUEUED, from_states=(State.RUNNING,), holder=attempt)
        return self._transitions.apply(run, shard, back)

    def shards_key(self, run: str) -> str:
        """Of the hash of the shards' records."""
        return self._keys(run).shards

    def tries(self, run: str, shard: int) -> int:
        """How often the shard was begun."""
        record = cast(str | None, self._redis.hget(self._keys(run).shards, str(shard)))
        return 0 if record is None else parse_shard_record(str(shard), record).tries

    def holds(self, run: str, shard: int, attempt: str) -> bool:
        """Whether the shard is still this attempt's. Asked right before its files are shown."""
        record = cast(str | None, self._redis.hget(self._keys(run).shards, str(shard)))
        return record is not None and record.startswith(f"{State.RUNNING}|{attempt}|")

    def cancel(self, run: str) -> State:
        """Stop a run: workers put its shards down between batches. How it ended, now or before.
        Raises UnknownRun."""
        return self._finish(run, cancel=True)

    def finish_run(self, run: str) -> State:
        """End a run that was set going when all its shards had ended. Raises UnknownRun."""
        return self._finish(run, cancel=False)

    def get(self, run: str) -> RunStatus:
        """Raises UnknownRun."""
        keys = self._keys(run)
        with self._redis.pipeline(transaction=True) as pipe:
            for key in (keys.run, keys.workers, keys.reasons):
                pipe.hgetall(key)
            fields, by_worker, by_shard = cast(list[dict[str, str]], pipe.execute())
        if "state" not in fields:
            raise UnknownRun(f"no run {run!r} here: never started, or its record expired")
        return parse_run_status(run, fields, by_worker, by_shard)

    def shards(self, run: str) -> list[ShardRecord]:
        """Every shard's record, in order."""
        found = cast(dict[str, str], self._redis.hgetall(self._keys(run).shards))
        return sorted(
            (parse_shard_record(shard, text) for shard, text in found.items()), key=_number
        )

    def ids(self) -> list[str]:
        """The runs of which there may be records, the latest first."""
        return cast(list[str], self._redis.zrevrange(self._index, 0, -1))

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
        state = self._finish_script(keys=self._keys(run), args=[int(cancel), self._retention_s])
        if not state:
            raise UnknownRun(f"no run {run!r} here: never started, or its record expired")
        return State(cast(str, state))

    def _remove_expired(self) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for run in (runs := self.ids()):
                pipe.exists(self._keys(run).run)
            gone = [run for run, stands in zip(runs, pipe.execute(), strict=True) if not stands]
        if gone:
            self._redis.zrem(self._index, *gone)


def _number(record: ShardRecord) -> int:
    return record.shard
