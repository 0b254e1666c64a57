"""Turn a job's record into its status.

The fields of the hash come in, a `JobStatus` comes out. This module reads nothing from Redis.
"""

from typing import Any, Final

from imagefleet.shared.jobs.model import TERMINAL, JobError, JobResult, Model, State
from imagefleet.shared.jobs.request import JobRequest

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


class JobStatus(Model):
    """The status is what a job's record says now.

    Times are Unix seconds by the Redis server's clock.
    """

    id: str
    state: State
    request: JobRequest
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    step: int = 0
    steps: int = 0
    deliveries: int = 0
    retries: int = 0
    """Attempts that failed and were followed by a retry."""
    retry_at: float | None = None
    """When the job goes back to its queue, if it waits for a retry."""
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
    """Return the status that the `fields` of a job's record say."""
    parsed: dict[str, Any] = {name: fields[name] for name in _NUMBERS if name in fields}
    for name, kind in (("request", JobRequest), ("result", JobResult), ("error", JobError)):
        if name in fields:
            parsed[name] = kind.model_validate_json(fields[name])
    parsed["preview"] = fields.get("preview")
    return JobStatus(id=job_id, state=State(fields["state"]), **parsed)
