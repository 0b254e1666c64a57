"""Jobs as tests wait for them."""

from collections.abc import Sequence

from imagefleet import Client, Job
from imagefleet.shared.jobs.model import State


def finish(producer: Client, jobs: Sequence[Job], timeout: float = 60) -> set[State]:
    """Wait until all have ended. The states they ended in."""
    for _ in producer.as_completed(jobs, timeout=timeout):
        pass
    return {status.state for status in producer.statuses(job.id for job in jobs)}
