"""Turn a job's record into its status.

Input: the fields of the hash. Output: a `JobStatus`. This module reads nothing from Redis.
"""

from typing import Any, Final

from pydantic import ValidationError

from imagefleet.shared.errors import InvalidRequest, UnknownJob, UnreadableRecord
from imagefleet.shared.jobs.failed_attempts import FailedAttempt, parse_failures
from imagefleet.shared.jobs.model import TERMINAL, Count, JobError, Model, State, Time
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.worker_names import worker_of
from imagefleet.shared.redis_client.wrong_type_keys import is_wrong_type

_NUMBERS: Final = (
    "submitted_at",
    "started_at",
    "finished_at",
    "retry_at",
    "images_kept_until",
    "images_deleted_at",
    "step",
    "steps",
    "deliveries",
    "retries",
)
_MAX_REASON_CHARACTERS: Final = 200


class JobStatus(Model):
    """The status is what a job's record says now.

    Times are Unix seconds by the Redis server's clock.
    """

    id: str
    state: State
    request: JobRequest
    submitted_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None
    step: Count = 0
    """It counts the denoising steps done: the mean over the images of the job. It is up to two
    seconds old, in fleets of eight workers or more up to four."""
    steps: Count = 0
    """It counts the denoising steps of each image; 0 before the first start."""
    deliveries: Count = 0
    """How often a worker took the job. More than 1 mostly means that workers died."""
    retries: Count = 0
    """Attempts that failed and were followed by a retry."""
    worker: str | None = None
    """It names the worker that runs the job, or ran it last: `host:process id:random part`."""
    retry_at: Time | None = None
    """When the job goes back to its queue, if it waits for a retry, a newer worker or a permit."""
    images_kept_until: Time | None = None
    """When the images of a job that succeeded are deleted; None: never."""
    images_deleted_at: Time | None = None
    """When they were."""
    failures: tuple[FailedAttempt, ...] = ()
    """These attempts failed and were followed by another: on which worker, and why. It keeps the
    latest eight. The last failure of a job that failed is `error`, on `worker`."""
    result: JobResult | None = None
    error: JobError | None = None
    preview: str | None = None
    """A small, rough version of the first image as a `data:` URL, while a job runs that asked for
    previews."""

    @property
    def done(self) -> bool:
        """Whether the job is in a terminal state."""
        return self.state in TERMINAL


def parse_status(job_id: str, fields: dict[str, str]) -> JobStatus:
    """Return the status that the `fields` of a job's record say.

    Unknown fields are ignored: a newer release may have written them.

    Raises:
        UnreadableRecord: a field is missing or damaged, or of a newer release.
    """
    try:
        return _parse_fields(job_id, fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'a field'}: {first['msg']}"
    except KeyError as error:
        reason = f"the field {error} is missing"
    except (ValueError, InvalidRequest, RecursionError) as error:
        reason = str(error)
    raise unreadable_record(job_id, reason)


def unreadable_record(job_id: str, reason: str) -> UnreadableRecord:
    """Return the error for a record that cannot be read. It shows 200 characters of `reason`."""
    shown = reason[:_MAX_REASON_CHARACTERS].encode("ascii", "backslashreplace").decode()
    return UnreadableRecord(
        f"the record of job {job_id!r} cannot be read ({shown}); "
        "it is damaged, or a newer release of imagefleet has written it"
    )


def unknown_job_error(job_id: str) -> UnknownJob:
    """Return the error for a job without a record."""
    return UnknownJob(
        f"no job {job_id!r} here: it was never submitted, was deleted, or its record expired"
    )


def _parse_fields(job_id: str, fields: dict[str, str]) -> JobStatus:
    parsed: dict[str, Any] = {name: fields[name] for name in _NUMBERS if name in fields}
    if "result" in fields:
        parsed["result"] = JobResult.from_record(fields)
    # Workers of 0.1.0 write no worker, and may have started a later attempt than the one that did.
    if worker := worker_of(fields.get("attempt", "")) or fields.get("worker"):
        parsed["worker"] = worker
    if "failures" in fields:
        parsed["failures"] = parse_failures(fields["failures"])
    if "error" in fields:
        parsed["error"] = JobError.model_validate_json(fields["error"], extra="ignore")
    return JobStatus(
        id=job_id,
        state=State(fields["state"]),
        request=JobRequest.parse_stored(fields["request"]),
        preview=fields.get("preview"),
        **parsed,
    )


def status_or_error(job_id: str, answer: Any) -> JobStatus | UnreadableRecord | None:
    """Return the status in the `answer` of HGETALL."""
    if is_wrong_type(answer):
        return unreadable_record(job_id, str(answer))
    if isinstance(answer, Exception):
        raise answer
    if not answer:
        return None
    try:
        return parse_status(job_id, answer)
    except UnreadableRecord as error:
        return error


def state_or_none(answer: Any) -> State | None:
    """Return the state in the `answer` of HGET, or None if there is none that is known here."""
    if isinstance(answer, Exception) and not is_wrong_type(answer):
        raise answer
    return State(answer) if answer in tuple(State) else None
