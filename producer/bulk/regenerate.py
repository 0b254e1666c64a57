"""Run a row of a dataset again as an ordinary job, and read its images from the fleet's store."""

from collections.abc import Callable
from typing import Final, Protocol

from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult

_TIMEOUT_S: Final = 600.0

Regenerate = Callable[[JobRequest], list[bytes]]
"""Returns all images of a request, as files, as the fleet generates them now."""


class SubmittedJob(Protocol):
    """The part of `producer.client.Job` that `regenerate` uses."""

    def result(self, timeout: float | None = None) -> JobResult: ...


def regenerate(submit: Callable[..., SubmittedJob], request: JobRequest) -> list[bytes]:
    """Submit `request`, wait for it, and return its image files.

    Args:
        submit: `Client.submit`, or a callable with the same arguments.

    Raises:
        ResultTimeout: the job was not done after ten minutes.
        JobFailed, JobCancelled: the job ended otherwise.
    """
    job = submit(**request.model_dump(exclude_defaults=True))
    return [image.read() for image in job.result(timeout=_TIMEOUT_S).images]
