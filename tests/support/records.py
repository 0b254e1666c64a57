"""Job records and results in tests."""

from imagefleet.shared.jobs.callback_events import Callback
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.result import ImageResult, JobResult
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult


def start_attempt(
    records: JobRecords,
    job_id: str,
    attempt: str,
    deliveries: int = 1,
    callback: Callback | None = None,
    claim: tuple[str, str] = ("", ""),
) -> TransitionResult:
    """Start a new attempt at the job, unless it has ended."""
    request = StartRequest(
        job_id=job_id, attempt=attempt, deliveries=deliveries, callback=callback, claim=claim
    )
    [transition] = records.start(request)
    return transition


def result_of_one_image(*, pixel_sha256: str | None = None) -> JobResult:
    """Return the result of job `j`, with one image at jobs/j/0.png."""
    image = ImageResult(
        index=0,
        key="jobs/j/0.png",
        url="memory://jobs/j/0.png",
        seed=1,
        sha256="00",
        pixel_sha256=pixel_sha256,
        size=3,
        height=8,
        width=8,
        format=ImageFormat.PNG,
    )
    return JobResult(images=(image,), model="m", model_digest="d", worker="w", timings={})
