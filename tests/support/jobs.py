"""How tests wait for jobs."""

from collections.abc import Sequence

from imagefleet import Client, Job
from imagefleet.shared.jobs.model import State


def finish(producer: Client, jobs: Sequence[Job], timeout: float = 300) -> set[State]:
    """Wait until all jobs have ended, and return the set of their terminal states."""
    for _ in producer.as_completed(jobs, timeout=timeout):
        pass
    return {status.state for status in producer.statuses(job.id for job in jobs)}
