"""Job records in Redis: one hash a job, every change a compare-and-set on the server.

Goes in: requests, moves, the attempt that asks. Comes out: `JobStatus`, or the news that somebody
else was first. Knows nothing of Celery, devices or storage. Time is the Redis server's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from imagefleet.shared.errors import (
    InvalidRequest,
    JobCancelled,
    LeaseLost,
    QueueFull,
    TenantLimit,
    UnknownJob,
)
from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.events import Callback, callback
from imagefleet.shared.jobs.model import (
    TERMINAL,
    TRANSITIONS,
    CallbackEvent,
    JobError,
    JobRequest,
    JobResult,
    JobStatus,
    State,
)
from imagefleet.shared.jobs.queues import known_queues_key, later_key, list_key, queue_of
from imagefleet.shared.jobs.tenants import ALL_TENANTS, limits_key
from imagefleet.shared.redis_client.scripts import call_all, script

if TYPE_CHECKING:
    from redis import Redis

_NUMBERS: Final = (
    "submitted_at",
    "started_at",
    "finished_at",
    "retry_at",
    "step",
    "steps",
    "deliveries",
    "retries",
)
_BROUGHT_BACK: Final = 100
"""Messages put aside that one call of the script brings back: Redis serves nobody meanwhile."""


@dataclass(frozen=True, kw_only=True)
class TransitionResult:
    """What came of a move: whether it happened, and what stood there before."""

    happened: bool
    state: State | None
    attempt: str
    cancel_requested: bool = False
    """It did not happen because the producer asked to cancel: the job may only end."""
    submitted_at: float = 0.0
    retries: int = 0


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """A new attempt at a job. Its claim (claims hash, tag) must still stand: a worker that lost its
    lease on the way here would otherwise take the job from the one that has its message."""

    job_id: str
    attempt: str
    deliveries: int = 1
    callback: Callback | None = None
    claim: tuple[str, str] = ("", "")


class JobRecords:
    """The records of one namespace. Safe to share between threads."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int) -> None:
        self._redis = client
        self._namespace = namespace
        self._retention_s = retention_s
        self._outbox = [f"{namespace}:outbox", f"{namespace}:outbox:messages"]
        self._submit = script(client, __package__, "submit")
        self._move = script(client, __package__, "transition")
        self._progress = script(client, __package__, "progress")
        self._cancel = script(client, __package__, "request_cancel")
        self._later = later_key(namespace)
        self._retry = script(client, __package__, "retry")
        self._bring_back = script(client, __package__, "requeue_due")

    def key(self, job_id: str) -> str:
        """Of a job's record."""
        return f"{self._namespace}:job:{job_id}"

    def submit(
        self, jobs: Iterable[tuple[str, JobRequest]], *, sorted_by_key: bool = True
    ) -> list[bool]:
        """Accept jobs, all or none, in one call. True where the id is new, False where it stood.

        Each goes to the queue of its compile key and tenant; with `sorted_by_key` false (nobody
        knows yet which keys there are) to the one that every worker reads.

        Raises:
            InvalidRequest: an id stands already with other parameters; the others were accepted.
            QueueFull: so many may not wait.
        """
        jobs = list(jobs)
        keys = [known_queues_key(self._namespace), limits_key(self._namespace)]
        args: list[str] = []
        for job_id, request in jobs:
            queue = queue_of(self._namespace, request, sorted_by_key=sorted_by_key)
            keys += [self.key(job_id), list_key(queue, request.priority)]
            args += [request.model_dump_json(), job_message(job_id, request, queue)]
        outcome, *answer = cast(list[Any], self._submit(keys=keys, args=args))
        if outcome != "accepted":
            raise _full(outcome, *answer)
        for (job_id, request), before in zip(jobs, answer[0], strict=True):
            if before:
                _same_request(job_id, request, JobRequest.model_validate_json(before))
        return [not before for before in answer[0]]

    def adopt(self, job_id: str, request: JobRequest) -> None:
        """Make the record of a job that came as a plain Celery message, if it has none."""
        key = self.key(job_id)
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hsetnx(key, "request", request.model_dump_json())
            pipe.hsetnx(key, "state", State.QUEUED.value)
            pipe.hsetnx(key, "submitted_at", str(self._redis.time()[0]))
            pipe.execute()

    def read(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """The records as they stand, None where there is none. One round trip."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(self.key(job_id))
            found = cast(list[dict[str, str]], pipe.execute())
        return [
            _status(job_id, fields) if "state" in fields else None
            for job_id, fields in zip(job_ids, found, strict=True)
        ]

    def states(self, job_ids: Sequence[str]) -> list[State | None]:
        """Only the states: what a thousand waiting jobs are polled for."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(self.key(job_id), "state")
            return [State(state) if state else None for state in pipe.execute()]

    def get(self, job_id: str) -> JobStatus:
        """One record. Raises UnknownJob."""
        [status] = self.read([job_id])
        if status is None:
            raise UnknownJob(f"no job {job_id!r} here: never submitted, or its record expired")
        return status

    def begin(self, *beginnings: StartRequest) -> list[TransitionResult]:
        """New attempts take their jobs, those that have not ended. One round trip."""
        return self._move_all(map(self._beginning, beginnings))

    def progress(
        self,
        job_id: str,
        attempt: str,
        step: int,
        steps: int,
        callback: Callback | None,
        preview: str = "",
    ) -> bool:
        """Note progress. False when the producer asked to cancel. Raises LeaseLost."""
        answer = self._progress(
            keys=[self.key(job_id), *self._outbox],
            args=[attempt, step, steps, *_packed(callback), preview],
        )
        if answer == -1:
            raise LeaseLost(f"job {job_id}: another attempt holds it, or it has ended")
        return bool(answer)

    def holds(self, job_id: str, attempt: str) -> bool:
        """Whether the job is still this attempt's."""
        found = self._redis.hmget(self.key(job_id), ["state", "attempt"])
        return cast(list[str | None], found) == [State.RUNNING.value, attempt]

    def succeed(
        self,
        job_id: str,
        attempt: str,
        result: JobResult,
        callback: Callback | None,
        *,
        steps: int = 0,
    ) -> TransitionResult:
        """`steps`: how many it took. The last report of its progress may never have been made."""
        fields: dict[str, str | int] = {"result": result.model_dump_json()}
        if steps:
            fields |= {"step": steps, "steps": steps}
        return self._enter(State.SUCCEEDED, job_id, attempt, fields, "finished_at", callback)

    def fail(
        self,
        job_id: str,
        attempt: str,
        error: JobError,
        callback: Callback | None,
        *,
        leave: Sequence[State] | None = None,
    ) -> TransitionResult:
        """`attempt` may be '' for a job that no living attempt has."""
        fields = {"error": error.model_dump_json()}
        return self._enter(
            State.FAILED, job_id, attempt, fields, "finished_at", callback, leave=leave
        )

    def cancel(
        self,
        job_id: str,
        attempt: str,
        callback: Callback | None,
        *,
        leave: Sequence[State] | None = None,
    ) -> TransitionResult:
        """End a job as cancelled: a running one by its `attempt`, a queued one with ''."""
        leave = leave or (None if attempt else [State.QUEUED])
        return self._enter(
            State.CANCELLED, job_id, attempt, {}, "finished_at", callback, leave=leave
        )

    def withdraw(self, job_id: str) -> None:
        """End a job as cancelled, with its callback, whoever has it."""
        [status] = self.read([job_id])
        if status is not None:
            event = callback(CallbackEvent.CANCELLED, job_id, status.request)
            self.cancel(job_id, "", event, leave=[State.QUEUED, State.RUNNING])

    def requeue(self, *attempts: tuple[str, str]) -> list[TransitionResult]:
        """These attempts (job, attempt) give their jobs back before they are done. Not those whose
        move is `cancel_requested`. One round trip."""
        fields: dict[str, str | int] = {"attempt": "", "step": 0, "started_at": ""}
        return self._move_all(
            self._entering(State.QUEUED, job_id, attempt, fields, "", None)
            for job_id, attempt in attempts
        )

    def retry(self, job_id: str, attempt: str, claim: tuple[str, str], pause_s: float) -> bool:
        """The attempt failed: put the job aside for `pause_s`, its message with it, and count that
        in `retries`. `claim` is (claims hash, tag).

        Returns False, with nothing changed, if the job or the message is no longer the attempt's.
        Raises JobCancelled if the producer asked for that meanwhile.
        """
        keys = [self.key(job_id), claim[0], self._later]
        answer = self._retry(keys=keys, args=[attempt, claim[1], pause_s])
        if answer == -1:
            raise JobCancelled(f"job {job_id} was cancelled")
        return bool(answer)

    def bring_back(self) -> int:
        """Put what was put aside and is due back to the head of its queue. How many."""
        brought, more = 0, _BROUGHT_BACK
        while more == _BROUGHT_BACK:
            more = cast(int, self._bring_back(keys=[self._later], args=[_BROUGHT_BACK]))
            brought += more
        return brought

    def ask_to_cancel(self, job_id: str) -> State:
        """Mark a running job for cancelling between steps. Raises UnknownJob."""
        state = cast(str, self._cancel(keys=[self.key(job_id)]))
        if not state:
            raise UnknownJob(f"no job {job_id!r} here: never submitted, or its record expired")
        return State(state)

    def _enter(
        self,
        state: State,
        job_id: str,
        attempt: str,
        fields: Mapping[str, str | int],
        clock_field: str,
        callback: Callback | None,
        leave: Sequence[State] | None = None,
    ) -> TransitionResult:
        keys, args = self._entering(
            state, job_id, attempt, fields, clock_field, callback, leave=leave
        )
        return _moved(self._move(keys=keys, args=args))

    def _move_all(
        self, calls: Iterable[tuple[list[str], list[str | int]]]
    ) -> list[TransitionResult]:
        return [_moved(answer) for answer in call_all(self._move, self._redis, calls)]

    def _beginning(self, each: StartRequest) -> tuple[list[str], list[str | int]]:
        fields: dict[str, str | int] = {
            "attempt": each.attempt,
            "deliveries": each.deliveries,
            "step": 0,
        }
        return self._entering(
            State.RUNNING, each.job_id, "", fields, "started_at", each.callback, each.claim
        )

    def _entering(
        self,
        state: State,
        job_id: str,
        attempt: str,
        fields: Mapping[str, str | int],
        clock_field: str,
        callback: Callback | None,
        claim: tuple[str, str] = ("", ""),
        leave: Sequence[State] | None = None,
    ) -> tuple[list[str], list[str | int]]:
        """The keys and arguments of move.lua."""
        may_leave = leave or [origin for origin, moves in TRANSITIONS.items() if state in moves]
        keep_s = self._retention_s if state in TERMINAL else 0
        keys = [self.key(job_id), *self._outbox, *filter(None, claim[:1])]
        return keys, [
            attempt,
            f",{','.join(may_leave)},",
            state.value,
            clock_field,
            keep_s,
            *_packed(callback),
            claim[1],
            *(part for pair in fields.items() for part in pair),
        ]


def _moved(answer: Any) -> TransitionResult:
    happened, before, holder, cancel_requested, submitted_at, retries = answer
    return TransitionResult(
        happened=bool(happened),
        state=State(before) if before else None,
        attempt=holder,
        cancel_requested=bool(cancel_requested),
        submitted_at=float(submitted_at),
        retries=int(retries),
    )


def _packed(callback: Callback | None) -> tuple[str, str]:
    return ("", "") if callback is None else (callback.id, callback.message)


def _full(whose: str, limit: str, waiting: int, more: int) -> QueueFull:
    if whose == ALL_TENANTS:
        kind, subject = QueueFull, "the queue is full"
    else:
        kind, subject = TenantLimit, f"tenant {whose!r} has enough jobs waiting"
    return kind(f"{subject}: {waiting} wait, {more} more would pass the limit of {limit}; later")


def _same_request(job_id: str, new: JobRequest, old: JobRequest) -> None:
    """A resend may draw another random seed; everything the caller chose must be equal."""
    ours, theirs = new.model_dump(), old.model_dump()
    if "seed" not in new.model_fields_set:
        del ours["seed"], theirs["seed"]
    for field, value in ours.items():
        if value != theirs[field]:
            raise InvalidRequest(
                "id", job_id, f"already stands with {field}={theirs[field]!r}, not {value!r}"
            )


def _status(job_id: str, fields: dict[str, str]) -> JobStatus:
    found: dict[str, Any] = {name: fields[name] for name in _NUMBERS if name in fields}
    for name, kind in (("request", JobRequest), ("result", JobResult), ("error", JobError)):
        if name in fields:
            found[name] = kind.model_validate_json(fields[name])
    found["preview"] = fields.get("preview")
    return JobStatus(id=job_id, state=State(fields["state"]), **found)
