"""Records as tests move them: one at a time."""

from imagefleet.shared.jobs.events import Callback
from imagefleet.shared.jobs.records import Beginning, Move, Records


def begin(
    records: Records,
    job_id: str,
    attempt: str,
    deliveries: int = 1,
    callback: Callback | None = None,
    claim: tuple[str, str] = ("", ""),
) -> Move:
    """A new attempt takes the job, unless it has ended."""
    beginning = Beginning(
        job_id=job_id, attempt=attempt, deliveries=deliveries, callback=callback, claim=claim
    )
    [move] = records.begin(beginning)
    return move
