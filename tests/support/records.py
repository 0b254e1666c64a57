"""Job records in tests: one transition at a time."""

from imagefleet.shared.jobs.callback_events import Callback
from imagefleet.shared.jobs.records import JobRecords
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
