"""Runs and their shards in Redis: a record a shard, every change a compare-and-set on the server.

    <namespace>:bulk                  sorted set: run by the time it began
    <namespace>:bulk:<run>            hash: what it is, its state, its counts
    <namespace>:bulk:<run>:shards     hash: shard number to `state|attempt|worker|done|failed|tries`
    <namespace>:bulk:<run>:workers    hash: worker to samples it made
    <namespace>:bulk:<run>:reasons    hash: shard number to its failed samples by error code (JSON)

A shard travels as a Celery message beside the jobs', on queues of its own, so the workers' claims
and leases hold for it as they do for jobs. The truth of a dataset is in its destination: what Redis
loses, running the same command again brings back. Knows no store and no Celery.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from shared import broker
from shared.bulk.layout import shard_name
from shared.errors import LeaseLost, MessageRejected, UnknownRun
from shared.jobs import Record, State
from shared.queues import list_key, queue_name
from shared.scripts import script

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

MESSAGE_VERSION: Final = 1
_CHUNK: Final = 500
_NONE: Final = "none"
"""State of a shard that has no record yet."""
_AT_REST: Final = (_NONE, State.FAILED, State.CANCELLED)
"""States in which no message of the shard is on its way."""


class ShardMessage(Record):
    """What the Celery message of a shard says."""

    version: int = MESSAGE_VERSION
    run: str
    shard: int
    destination: str
    """URL of the store."""


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard as it stands. Counts are samples."""

    shard: int
    state: State
    attempt: str
    worker: str
    done: int
    failed: int
    tries: int


@dataclass(frozen=True, kw_only=True)
class ShardMove:
    """What came of a move: whether it happened, what stood there before, how the run stands."""

    happened: bool
    before: State | None
    run: State | None
    """None: no record of the run."""


class RunStatus(Record):
    """A run as it stands. Times are Unix seconds by the Redis server's clock."""

    id: str
    destination: str
    plan_digest: str
    state: State
    model: str | None
    shards: int
    samples: int
    images: int
    """Samples made so far, those of shards in work too."""
    failed_images: int
    shards_by_state: dict[State, int]
    failures_by_reason: dict[str, int]
    images_by_worker: dict[str, int]
    max_failures: int | None
    priority: int
    started_at: float
    finished_at: float | None

    @property
    def done(self) -> bool:
        return self.state is not State.RUNNING


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """What the record of a run is made of."""

    id: str
    destination: str
    plan_digest: str
    model: str | None
    shards: int
    samples: int
    max_failures: int | None
    priority: int


class Runs:
    """The runs of one namespace. Safe to share between threads."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        self._redis = client
        self._namespace = namespace
        self._retention_s = retention_s
        self._index = f"{namespace}:bulk"
        self._move = script(client, __package__, "move")
        self._settle = script(client, __package__, "settle")

    def start(self, run: NewRun) -> None:
        """Make the run's record, or set one that has ended going again. Sends no shard."""
        key = self._key(run.id)
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
                pipe.hsetnx(key, field, str(value))
            pipe.hset(
                key,
                mapping={
                    "state": State.RUNNING.value,
                    "max_failures": most,
                    "priority": run.priority,
                },
            )
            pipe.hdel(key, "finished_at")
            for each in self._keys(run.id)[:3]:
                pipe.persist(each)
            pipe.zadd(self._index, {run.id: now}, nx=True)
            pipe.execute()

    def enqueue(
        self,
        run: NewRun,
        shards: Iterable[tuple[int, int, int | None, int | None]],
    ) -> int:
        """Send shards (number, samples, height, width) to the workers: those without a record, and
        those that failed or were cancelled. How many went."""
        sent = 0
        for chunk in _chunks(shards):
            with self._redis.pipeline(transaction=False) as pipe:
                for number, samples, height, width in chunk:
                    queue = bulk_queue(self._namespace, run.model, height, width)
                    said = ShardMessage(run=run.id, shard=number, destination=run.destination)
                    message = broker.task_message(
                        broker.BULK_TASK_NAME,
                        message_id(run.id, number),
                        said.model_dump(),
                        queue=queue,
                        priority=run.priority,
                        images=samples,
                    )
                    self._enter(
                        State.QUEUED,
                        run.id,
                        number,
                        leave=_AT_REST,
                        counts="0|0",
                        message=(list_key(queue, run.priority), message),
                        client=pipe,
                    )
                sent += sum(_moved(answer).happened for answer in pipe.execute())
        return sent

    def withdraw(self, run: str, shards: Iterable[int]) -> list[int]:
        """Count shards as cancelled, so that no worker touches their files until they are sent
        again. Which: not those on their way or in work."""
        gone = []
        for chunk in _chunks(shards):
            with self._redis.pipeline(transaction=False) as pipe:
                for number in chunk:
                    leave = (*_AT_REST, State.SUCCEEDED)
                    self._enter(
                        State.CANCELLED, run, number, leave=leave, counts="0|0", client=pipe
                    )
                answers = pipe.execute()
            gone += [number for number, move in zip(chunk, answers, strict=True) if move[0]]
        return gone

    def note_finished(self, run: str, shards: Iterable[tuple[int, int, int]]) -> None:
        """Record shards (number, samples, failed samples) whose commit markers were found."""
        for chunk in _chunks(shards):
            with self._redis.pipeline(transaction=False) as pipe:
                for number, done, failed in chunk:
                    self._enter(
                        State.SUCCEEDED,
                        run,
                        number,
                        leave=_AT_REST,
                        counts=f"{done}|{failed}",
                        client=pipe,
                    )
                pipe.execute()

    def begin(
        self, run: str, shard: int, attempt: str, worker: str, claim: tuple[str, str] = ("", "")
    ) -> ShardMove:
        """A worker takes the shard; `claim` (claims hash, tag) must still stand. Not if the run has
        stopped: then the shard is recorded as cancelled, and its message can go."""
        leave = (_NONE, State.QUEUED, State.RUNNING)
        return _moved(
            self._enter(
                State.RUNNING, run, shard, leave=leave, attempt=attempt, worker=worker, claim=claim
            )
        )

    def progress(
        self, run: str, shard: int, attempt: str, worker: str, done: int, failed: int
    ) -> bool:
        """Note how many samples there are. False when the run has stopped: hand it back.

        Raises:
            LeaseLost: another attempt has the shard, or nobody does.
        """
        move = self._by(State.RUNNING, run, shard, attempt, worker, done, failed)
        return move.run is State.RUNNING

    def succeed(
        self,
        run: str,
        shard: int,
        attempt: str,
        worker: str,
        done: int,
        reasons: Mapping[str, int],
    ) -> ShardMove:
        """The commit marker stands. `reasons` are failed samples by error code.

        The move that completes the run, and only that one, answers with the run succeeded or
        failed: whoever made it writes the summary. Raises LeaseLost.
        """
        self._tell(run, shard, reasons)
        return self._by(State.SUCCEEDED, run, shard, attempt, worker, done, sum(reasons.values()))

    def fail(
        self, run: str, shard: int, attempt: str, worker: str, reasons: Mapping[str, int]
    ) -> ShardMove:
        """The shard as a whole cannot be made. Raises LeaseLost."""
        self._tell(run, shard, reasons)
        return self._by(State.FAILED, run, shard, attempt, worker, 0, sum(reasons.values()))

    def hand_back(self, run: str, shard: int, attempt: str) -> ShardMove:
        """The worker gives the shard back, if it still has it; its message must go back to the
        queue too, unless the run has stopped: then it must go."""
        leave = (State.RUNNING,)
        return _moved(self._enter(State.QUEUED, run, shard, leave=leave, holder=attempt))

    def tries(self, run: str, shard: int) -> int:
        """How often the shard was begun."""
        record = cast(str | None, self._redis.hget(self._keys(run)[1], str(shard)))
        return 0 if record is None else _record(str(shard), record).tries

    def holds(self, run: str, shard: int, attempt: str) -> bool:
        """Whether the shard is still this attempt's. Asked right before its files are shown."""
        record = cast(str | None, self._redis.hget(self._keys(run)[1], str(shard)))
        return record is not None and record.startswith(f"{State.RUNNING}|{attempt}|")

    def cancel(self, run: str) -> State:
        """Stop a run: workers put its shards down between batches. How it ended, now or before.
        Raises UnknownRun."""
        return self._end(run, cancel=True)

    def settle(self, run: str) -> State:
        """End a run that was set going when all its shards had ended. Raises UnknownRun."""
        return self._end(run, cancel=False)

    def get(self, run: str) -> RunStatus:
        """Raises UnknownRun."""
        _, _, workers, reasons = self._keys(run)
        with self._redis.pipeline(transaction=True) as pipe:
            for key in (self._key(run), workers, reasons):
                pipe.hgetall(key)
            fields, by_worker, by_shard = cast(list[dict[str, str]], pipe.execute())
        if "state" not in fields:
            raise UnknownRun(f"no run {run!r} here: never started, or its record expired")
        return _status(run, fields, by_worker, by_shard)

    def shards(self, run: str) -> list[ShardRecord]:
        """Every shard's record, in order."""
        found = cast(dict[str, str], self._redis.hgetall(self._keys(run)[1]))
        return sorted((_record(shard, text) for shard, text in found.items()), key=_number)

    def ids(self) -> list[str]:
        """The runs of which there may be records, the latest first."""
        return cast(list[str], self._redis.zrevrange(self._index, 0, -1))

    def _end(self, run: str, *, cancel: bool) -> State:
        state = self._settle(keys=self._keys(run)[:3], args=[int(cancel), self._retention_s])
        if not state:
            raise UnknownRun(f"no run {run!r} here: never started, or its record expired")
        return State(cast(str, state))

    def _tell(self, run: str, shard: int, reasons: Mapping[str, int]) -> None:
        key = self._keys(run)[3]
        if reasons:
            self._redis.hset(key, str(shard), json.dumps(dict(reasons)))
        else:
            self._redis.hdel(key, str(shard))

    def _by(
        self, state: State, run: str, shard: int, attempt: str, worker: str, done: int, failed: int
    ) -> ShardMove:
        """A move that only the attempt which has the shard may make."""
        move = _moved(
            self._enter(
                state,
                run,
                shard,
                leave=(State.RUNNING,),
                holder=attempt,
                attempt=attempt if state is State.RUNNING else "",
                worker=worker,
                counts=f"{done}|{failed}",
            )
        )
        if not move.happened:
            raise LeaseLost(f"shard {shard_name(shard)} of run {run} is another attempt's now")
        return move

    def _enter(
        self,
        state: State,
        run: str,
        shard: int,
        *,
        leave: Iterable[str],
        holder: str = "",
        attempt: str = "",
        worker: str = "",
        counts: str = "",
        claim: tuple[str, str] = ("", ""),
        message: tuple[str, str] = ("", ""),
        client: Any = None,
    ) -> Any:
        """Call move.lua."""
        run_key, shards, workers, _ = self._keys(run)
        return self._move(
            keys=[run_key, shards, workers, claim[0], message[0]],
            args=[
                shard,
                holder,
                f",{','.join(leave)},",
                state.value,
                attempt,
                worker,
                counts,
                claim[1],
                message[1],
                self._retention_s,
            ],
            client=client,
        )

    def _key(self, run: str) -> str:
        return f"{self._index}:{run}"

    def _keys(self, run: str) -> tuple[str, str, str, str]:
        key = self._key(run)
        return key, f"{key}:shards", f"{key}:workers", f"{key}:reasons"


def bulk_queue(namespace: str, model: str | None, height: int | None, width: int | None) -> str:
    """The queue of the shards of one compile key: `imagefleet.bulk.default.native`."""
    return queue_name(f"{namespace}.bulk", model, height, width)


def message_id(run: str, shard: int) -> str:
    """Celery's task id of a shard."""
    return f"{run}-{shard_name(shard)}"


def unpack_shard(kwargs: object) -> ShardMessage:
    """What a shard's message says. Raises MessageRejected."""
    if not isinstance(kwargs, dict):
        raise MessageRejected("message carries no keyword arguments")
    if kwargs.get("version") != MESSAGE_VERSION:
        raise MessageRejected(f"shard message of version {kwargs.get('version')!r}, not 1")
    try:
        return ShardMessage.model_validate(kwargs)
    except ValueError as error:
        raise MessageRejected(f"not the message of a shard: {error}") from None


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """What goes to the server in one round trip."""
    source = iter(items)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk


def _moved(answer: Any) -> ShardMove:
    happened, before, run = answer
    return ShardMove(
        happened=bool(happened),
        before=None if before == _NONE else State(before),
        run=State(run) if run else None,
    )


def _record(shard: str, text: str) -> ShardRecord:
    state, attempt, worker, done, failed, tries = text.split("|")
    return ShardRecord(
        shard=int(shard),
        state=State(state),
        attempt=attempt,
        worker=worker,
        done=int(done),
        failed=int(failed),
        tries=int(tries),
    )


def _number(record: ShardRecord) -> int:
    return record.shard


def _status(
    run: str,
    fields: Mapping[str, str],
    by_worker: Mapping[str, str],
    by_shard: Mapping[str, str],
) -> RunStatus:
    reasons: dict[str, int] = {}
    for text in by_shard.values():
        for code, samples in json.loads(text).items():
            reasons[code] = reasons.get(code, 0) + samples
    return RunStatus(
        id=run,
        destination=fields["destination"],
        plan_digest=fields["plan_digest"],
        state=State(fields["state"]),
        model=fields["model"] or None,
        shards=int(fields["shards"]),
        samples=int(fields["samples"]),
        images=int(fields.get("images", 0)),
        failed_images=int(fields.get("failed_images", 0)),
        shards_by_state={state: int(fields.get(f"shards:{state}", 0)) for state in State},
        failures_by_reason=reasons,
        images_by_worker={worker: int(samples) for worker, samples in by_worker.items()},
        max_failures=int(fields["max_failures"]) if fields["max_failures"] else None,
        priority=int(fields["priority"]),
        started_at=float(fields["started_at"]),
        finished_at=float(fields["finished_at"]) if "finished_at" in fields else None,
    )
