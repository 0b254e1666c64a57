"""Keep job records in Redis: one hash per job, and every change is a compare-and-set on the server.

Input: requests and state transitions, with the attempt that asks for them. Output: a `JobStatus`,
or whether the transition was applied. This module uses neither devices nor storage. Time is the
Redis server's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from imagefleet.shared.errors import UnreadableRecord
from imagefleet.shared.jobs.callback_events import Callback, JobTimes, build_callback
from imagefleet.shared.jobs.delayed_messages import DelayedMessages
from imagefleet.shared.jobs.image_expiry import KeepTime
from imagefleet.shared.jobs.message_arguments import stored_text
from imagefleet.shared.jobs.model import CallbackEvent, JobError, State
from imagefleet.shared.jobs.progress import AttemptVerdict, ProgressReport, attempt_verdict
from imagefleet.shared.jobs.queue_sweeper import QueueSweeper
from imagefleet.shared.jobs.record_reader import read_records
from imagefleet.shared.jobs.redis_keys import (
    expiring_key,
    job_key,
    outbox_key,
    outbox_messages_key,
)
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.resend import Resender
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.retries import JobRetries
from imagefleet.shared.jobs.status import (
    JobStatus,
    state_or_none,
    status_or_error,
    unknown_job_error,
)
from imagefleet.shared.jobs.submitter import JobSubmitter
from imagefleet.shared.jobs.transitions import (
    Acknowledgement,
    JobTransitions,
    StartRequest,
    TransitionResult,
)
from imagefleet.shared.redis_client.grouped_calls import Gather
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline
    from redis.commands.core import Script


class JobRecords:
    """This class reads and changes the job records of one namespace. Threads may share it."""

    def __init__(
        self,
        client: "Redis",
        namespace: str,
        retention_s: int,
        on_callback: Callable[[], None] = lambda: None,
    ) -> None:
        self._redis = client
        self._namespace = namespace
        self._outbox = [outbox_key(namespace), outbox_messages_key(namespace)]
        self.submit: Final = JobSubmitter(client, namespace).submit
        self._resender = Resender(client, namespace)
        self._transitions = JobTransitions(client, namespace, retention_s, on_callback)
        self._progress = load_script(client, __package__, "progress", outbox=True)
        self._request_cancel = load_script(client, __package__, "request_cancel")
        self._delete_ended = load_script(client, __package__, "delete_ended")
        self.retry: Final = JobRetries(client, namespace).retry
        self.requeue_due: Final = DelayedMessages(client, namespace).requeue_due
        self.sweep_queues: Final = QueueSweeper(client, namespace).sweep

    def key(self, job_id: str) -> str:
        """Return the Redis key of a job's record."""
        return job_key(self._namespace, job_id)

    def resend(self, job_ids: Sequence[str], *, by_compile_key: bool = True) -> list[bool]:
        """Queue the messages of these jobs again if they are queued and have none.

        Return for each whether it was queued again. A job whose message is held by a worker, or is
        far behind in a long queue, may be computed twice and is recorded once.

        Raises:
            UnknownJob, UnreadableRecord, InvalidRequest: nothing was queued.
        """
        return self._resender.resend_stored(job_ids, by_compile_key=by_compile_key)

    def create_if_missing(self, job_id: str, request: JobRequest) -> None:
        """Create the record of a job that came as a plain Celery message, if it has none."""
        key = self.key(job_id)
        seconds, microseconds = self._redis.time()
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hsetnx(key, "request", stored_text(request))
            pipe.hsetnx(key, "state", State.QUEUED.value)
            pipe.hsetnx(key, "submitted_at", f"{seconds}.{microseconds:06d}")
            pipe.execute()

    def read(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """Return the status of each job, or None if it has no record. One round trip.

        Raises UnreadableRecord.
        """
        statuses: list[JobStatus | None] = []
        for status in self.read_each(job_ids):
            if isinstance(status, UnreadableRecord):
                raise status
            statuses.append(status)
        return statuses

    def read_each(self, job_ids: Sequence[str]) -> list[JobStatus | UnreadableRecord | None]:
        """Return the status of each job, the error that says why its record cannot be read, or
        None if it has no record. One round trip."""
        answers = self._for_each(job_ids, lambda pipe, key: pipe.hgetall(key))
        return [
            status_or_error(job_id, answer) for job_id, answer in zip(job_ids, answers, strict=True)
        ]

    def stored_request(self, job_id: str) -> str | None:
        """Return the text of the request in a job's record; None if it has none, or is damaged."""
        [answer] = self._for_each([job_id], lambda pipe, key: pipe.hget(key, "request"))
        return answer if isinstance(answer, str) else None

    def states(self, job_ids: Sequence[str]) -> list[State | None]:
        """Return only the states: cheaper than `read` for polling a thousand jobs.

        The state of a job without a record, or with an unreadable one, is None.
        """
        answers = self._for_each(job_ids, lambda pipe, key: pipe.hget(key, "state"))
        return [state_or_none(answer) for answer in answers]

    def _for_each(
        self, job_ids: Sequence[str], read: "Callable[[Pipeline, str], object]"
    ) -> list[Any]:
        return read_records(self._redis, [self.key(job_id) for job_id in job_ids], read)

    def get(self, job_id: str) -> JobStatus:
        """Return the status of one job. Raises UnknownJob, UnreadableRecord."""
        [status] = self.read([job_id])
        if status is None:
            raise unknown_job_error(job_id)
        return status

    def delete_ended(self, job_id: str, store_addresses: Iterable[str] = ()) -> State:
        """Delete the record of a job if it has ended. Return the state of the job before.

        Args:
            store_addresses: the stores whose entry of the job is removed too; see `ImageExpiry`.

        Raises UnknownJob.
        """
        expiring = (expiring_key(self._namespace, each) for each in dict.fromkeys(store_addresses))
        return self._state_from(self._delete_ended, job_id, *expiring)

    def _state_from(self, script: "Script", job_id: str, *more_keys: str) -> State:
        """Return the state that a script returns for a job. Raises UnknownJob."""
        state = cast(str, script(keys=[self.key(job_id), *more_keys], args=[job_id]))
        if not state:
            raise unknown_job_error(job_id)
        return State(state)

    def start(self, *requests: StartRequest) -> list[TransitionResult]:
        """Move jobs that have not ended to `running` under new attempts. One round trip."""
        return self._transitions.start(requests)

    def record_progress(self, *reports: ProgressReport) -> list[AttemptVerdict]:
        """Record the progress of several jobs in one call. Return the verdict on each attempt."""
        if all(report.only_check for report in reports):
            return self.check_attempts(*((report.job_id, report.attempt) for report in reports))
        keys = [*self._outbox, *(self.key(report.job_id) for report in reports)]
        args = [argument for report in reports for argument in report.arguments()]
        answers = cast(list[int], self._progress(keys=keys, args=args))
        return [AttemptVerdict(answer) for answer in answers]

    def check_attempts(self, *attempts: tuple[str, str]) -> list[AttemptVerdict]:
        """Return the verdict on each of these (job, attempt) pairs. One round trip, and no script:
        for Redis this is the cheapest way. A damaged record counts as lost."""
        names = ["state", "attempt", "cancel_requested"]
        job_ids = [job_id for job_id, _ in attempts]
        answers = self._for_each(job_ids, lambda pipe, key: pipe.hmget(key, names))
        pairs = zip(answers, attempts, strict=True)
        return [attempt_verdict(record, attempt) for record, (_, attempt) in pairs]

    def running_attempt(self, job_id: str) -> str | None:
        """Return the attempt that a running job belongs to; None if it does not run."""
        fields: Any = self._redis.hmget(self.key(job_id), ["state", "attempt"])
        return fields[1] if fields[0] == State.RUNNING else None

    def is_current(self, job_id: str, attempt: str) -> bool:
        """Return whether the job is running under this attempt."""
        fields = self._redis.hmget(self.key(job_id), ["state", "attempt"])
        return cast(list[str | None], fields) == [State.RUNNING.value, attempt]

    def succeed(
        self,
        job_id: str,
        attempt: str,
        result: JobResult,
        callback: Callback | None,
        *,
        steps: int = 0,
        keep: KeepTime | None = None,
        acknowledgement: Acknowledgement | None = None,
        gather: Gather | None = None,
    ) -> TransitionResult:
        """End a job as succeeded. `steps` is recorded as its progress, because the last report of
        progress may have been skipped. Its images are kept for `keep` from now. Its message may end
        in the same step (`acknowledgement`), and other jobs in the same round trip (`gather`)."""
        fields: dict[str, str | int] = dict(result.record_fields())
        if steps:
            fields |= {"step": steps, "steps": steps}
        return self._transitions.end(
            State.SUCCEEDED,
            job_id,
            attempt,
            fields,
            callback,
            keep=keep,
            acknowledgement=acknowledgement,
            gather=gather,
        )

    def fail(
        self,
        job_id: str,
        attempt: str,
        error: JobError,
        callback: Callback | None,
        *,
        from_states: Sequence[State] | None = None,
    ) -> TransitionResult:
        """End a job as failed. `attempt` is '' if any attempt, or none, may hold the job."""
        fields = {"error": error.model_dump_json()}
        return self._transitions.end(
            State.FAILED, job_id, attempt, fields, callback, from_states=from_states
        )

    def cancel(
        self,
        job_id: str,
        attempt: str,
        callback: Callback | None,
    ) -> TransitionResult:
        """End a job as cancelled: a running one by its `attempt`, a queued one with ''."""
        states = None if attempt else [State.QUEUED]
        return self._transitions.end(
            State.CANCELLED, job_id, attempt, {}, callback, from_states=states
        )

    def cancel_unconditionally(self, job_id: str, request_sha1: str = "") -> None:
        """End a job as cancelled, with its callback, whichever attempt holds it.

        Args:
            request_sha1: SHA-1 of its request. The job stays as it is if its record has another
                one: it was deleted, and its id given to another job. Empty: not known.
        """
        [status] = self.read([job_id])
        if status is not None:
            event = build_callback(
                CallbackEvent.CANCELLED,
                job_id,
                status.request,
                worker=status.worker,
                times=JobTimes(submitted_at=status.submitted_at, started_at=status.started_at),
            )
            self._transitions.end(
                State.CANCELLED,
                job_id,
                "",
                {},
                event,
                from_states=[State.QUEUED, State.RUNNING],
                request_sha1=request_sha1,
            )

    def requeue(
        self, *attempts: tuple[str, str], failure: tuple[str, str] | None = None
    ) -> list[TransitionResult]:
        """Move the running jobs of these (job, attempt) pairs back to `queued`. One round trip.

        A job whose producer asked to cancel stays as it is (`cancel_requested`). The code and the
        message of a `failure` are kept in the records.
        """
        return self._transitions.requeue(attempts, failure)

    def request_cancel(self, job_id: str) -> State:
        """Ask the attempt at a running job to cancel between steps. Return the job's state.

        Raises UnknownJob.
        """
        return self._state_from(self._request_cancel, job_id)
