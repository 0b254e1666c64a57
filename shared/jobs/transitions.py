"""Call `transition.lua`, which changes the state of job records, for one job or for many.

A transition is a compare-and-set on the server, and puts its callback into the outbox in the same
step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from imagefleet.shared.jobs.callback_events import Callback
from imagefleet.shared.jobs.failed_attempts import FailedAttempt, failure_field, parse_failures
from imagefleet.shared.jobs.image_expiry import KeepTime
from imagefleet.shared.jobs.model import TERMINAL, TRANSITIONS, State
from imagefleet.shared.jobs.redis_keys import (
    host_failures_key,
    job_ends_key,
    job_key,
    outbox_key,
    outbox_messages_key,
)
from imagefleet.shared.jobs.worker_names import worker_of
from imagefleet.shared.redis_client.grouped_calls import Gather, GroupedCalls
from imagefleet.shared.redis_client.scripts import call_many, load_script

if TYPE_CHECKING:
    from redis import Redis

_CLAIM_KEYS_AT: Final = 5
_ACKNOWLEDGEMENT_AT: Final = 11
_NO_ACKNOWLEDGEMENT: Final = ("", "", 0)
"""Where transition.lua expects the keys of a claim, and its arguments 12 to 14."""


@dataclass(frozen=True, kw_only=True)
class TransitionResult:
    """The result says whether a transition was applied, and what the record held before it."""

    happened: bool
    state: State | None
    attempt: str
    cancel_requested: bool = False
    """The transition was refused because the producer asked to cancel: the job may only end."""
    expired: bool = False
    """The transition was refused because the job's `ttl` ended before its first start."""
    submitted_at: float = 0.0
    retries: int = 0
    acknowledged: bool = False
    """What `Acknowledgement` asks was done, too."""
    superseded: bool = False
    """The transition was refused because the record is that of a later job with the same id."""
    failed_here: bool = False
    """The job was not started because it failed on `StartRequest.host` before."""
    failures: tuple[FailedAttempt, ...] = ()
    """These attempts failed before, as the record says."""


@dataclass(frozen=True, kw_only=True)
class Acknowledgement:
    """The end of a job's message, which is written in one step with the end of its record.

    One call and one write to the append-only file take the place of three.
    """

    claims: str
    """It is the key of the worker's claims."""
    deliveries: str
    """It is the key of the delivery counts."""
    tag: str
    """It is the claim of the message."""
    result_key: str = ""
    """Where Celery keeps the result of the task."""
    result: str = ""
    """The result in Celery's form; empty if Celery stores none."""
    keep_result_s: int = 0
    """Redis keeps the result for this many seconds; 0 means for ever."""

    def add_to(self, keys: list[str], args: list[str | int]) -> None:
        """Add what transition.lua needs to the keys and arguments of a call without a claim."""
        # A cluster gets no key of another slot.
        stored_in = self.result_key if self.result else self.claims
        keys[_CLAIM_KEYS_AT:_CLAIM_KEYS_AT] = [self.claims, self.deliveries, stored_in]
        at = slice(_ACKNOWLEDGEMENT_AT, _ACKNOWLEDGEMENT_AT + len(_NO_ACKNOWLEDGEMENT))
        args[at] = [self.tag, self.result, self.keep_result_s]


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """A start request asks to start a new attempt at a job.

    `claim` (claims hash, tag) must still exist. Otherwise a worker that has just lost its lease
    would take the job from the worker that holds its message now.
    """

    job_id: str
    attempt: str
    deliveries: int = 1
    callback: Callback | None = None
    claim: tuple[str, str] = ("", "")
    ttl_s: float | None = None
    """Seconds after its submission within which the job must start for the first time."""
    request_sha1: str = ""
    """Of the request as it was stored together with the message. Empty: not known."""
    keep: KeepTime | None = None
    """How long what the attempt stores is kept, from now. The job's success counts it anew."""
    host: str = ""
    """The job does not start if it failed alone on healthy devices of this host. Empty: it may."""


class JobTransitions:
    """This class applies transitions to the job records of one namespace. Threads may share it."""

    def __init__(
        self,
        client: "Redis",
        namespace: str,
        retention_s: int,
        on_callback: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_callback: called after a callback was put into the outbox.
        """
        self._redis = client
        self._on_callback = on_callback
        self._namespace = namespace
        self._retention_s = retention_s
        self._outbox = [outbox_key(namespace), outbox_messages_key(namespace)]
        self._counts = [job_ends_key(namespace), host_failures_key(namespace)]
        self._transition = load_script(
            client, __package__, "failed_attempts", "job_ends", "transition", outbox=True
        )
        self._ends_together = GroupedCalls(self._transition, client)

    def start(self, requests: Iterable[StartRequest]) -> list[TransitionResult]:
        """Move jobs to `running` under new attempts. One round trip."""
        return self._apply_all(map(self._start_call, requests))

    def requeue(
        self, attempts: Iterable[tuple[str, str]], failure: tuple[str, str] | None = None
    ) -> list[TransitionResult]:
        """Move the running jobs of these (job, attempt) pairs to `queued`. One round trip.

        Args:
            failure: the code and the message of why the attempts failed, if they did.
        """
        fields: dict[str, str | int] = {"attempt": "", "step": 0, "started_at": ""}
        if failure is not None:
            fields["failure"] = failure_field(*failure)
        return self._apply_all(
            self._call(State.QUEUED, job_id, attempt, fields, "") for job_id, attempt in attempts
        )

    def end(
        self,
        state: State,
        job_id: str,
        attempt: str,
        fields: Mapping[str, str | int],
        callback: Callback | None,
        from_states: Sequence[State] | None = None,
        keep: KeepTime | None = None,
        acknowledgement: Acknowledgement | None = None,
        gather: Gather | None = None,
        request_sha1: str = "",
    ) -> TransitionResult:
        """Move a job to a terminal state; `attempt` '' stands for any. The record then expires.

        The end is counted by its state, and by the code of the error if the job failed. With
        `acknowledgement` its message ends in the same step. With `gather` ends of other jobs may
        share the round trip.
        """
        keys, args = self._call(
            state,
            job_id,
            attempt,
            fields,
            "finished_at",
            callback,
            from_states=from_states,
            keep=keep,
            request_sha1=request_sha1,
        )
        if acknowledgement is not None:
            acknowledgement.add_to(keys, args)
        call = partial(self._ends_together.call, gather=gather) if gather else self._transition
        result = _parse_result(call(keys=keys, args=args))
        if callback is not None:
            self._on_callback()
        return result

    def _apply_all(
        self, calls: Iterable[tuple[list[str], list[str | int]]]
    ) -> list[TransitionResult]:
        return [_parse_result(answer) for answer in call_many(self._transition, self._redis, calls)]

    def _start_call(self, request: StartRequest) -> tuple[list[str], list[str | int]]:
        fields: dict[str, str | int] = {
            "attempt": request.attempt,
            "worker": worker_of(request.attempt),
            "deliveries": request.deliveries,
            "step": 0,
        }
        return self._call(
            State.RUNNING,
            request.job_id,
            "",
            fields,
            "started_at",
            request.callback,
            request.claim,
            ttl_s=request.ttl_s,
            keep=request.keep,
            request_sha1=request.request_sha1,
            host=request.host,
        )

    def _call(  # noqa: PLR0913 - every argument is one of transition.lua
        self,
        state: State,
        job_id: str,
        attempt: str,
        fields: Mapping[str, str | int],
        time_field: str,
        callback: Callback | None = None,
        claim: tuple[str, str] = ("", ""),
        from_states: Sequence[State] | None = None,
        ttl_s: float | None = None,
        keep: KeepTime | None = None,
        request_sha1: str = "",
        host: str = "",
    ) -> tuple[list[str], list[str | int]]:
        """Return the keys and arguments of transition.lua."""
        allowed = from_states or [old for old, targets in TRANSITIONS.items() if state in targets]
        expire_s = self._retention_s if state in TERMINAL else 0
        keys = [job_key(self._namespace, job_id), *self._outbox, *self._counts]
        keys += filter(None, claim[:1])
        if keep is not None:
            keys.append(keep.key)
        return keys, [
            attempt,
            f",{','.join(allowed)},",
            state.value,
            time_field,
            expire_s,
            *callback_args(callback),
            claim[1],
            "" if ttl_s is None else str(ttl_s),
            "" if keep is None else str(keep.seconds or 0),
            job_id,
            *_NO_ACKNOWLEDGEMENT,
            request_sha1,
            host,
            *(part for pair in fields.items() for part in pair),
        ]


def callback_args(callback: Callback | None) -> tuple[str, str]:
    """Return the arguments `callback id` and `callback message` of a script."""
    return ("", "") if callback is None else (callback.id, callback.message)


def _parse_result(answer: Any) -> TransitionResult:
    happened, state, attempt, cancel_requested, submitted_at, retries, *more = answer
    expired, done, other, failures, failed_here = more
    return TransitionResult(
        happened=bool(happened),
        state=State(state) if state else None,
        attempt=attempt,
        cancel_requested=bool(cancel_requested),
        expired=bool(expired),
        submitted_at=float(submitted_at),
        retries=int(retries),
        acknowledged=bool(done),
        superseded=bool(other),
        failed_here=bool(failed_here),
        failures=parse_failures(failures),
    )
