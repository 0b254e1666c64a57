"""Read how many jobs ended within the last hour, by state and error code, and which failed last.

`job_ends.lua` notes both in the step in which a job ends, in workers of release 0.2.0 and later.
"""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from imagefleet.shared.jobs.host_failures import PERIOD_S
from imagefleet.shared.jobs.model import parse_count
from imagefleet.shared.jobs.redis_keys import failed_jobs_key, job_ends_key
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types, read_key

if TYPE_CHECKING:
    from redis.client import Pipeline


class RecentEnds:
    """This class reads the recent ends of the jobs of a fleet. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def counts(self, within_s: int) -> dict[str, int]:
        """Return the numbers of jobs by state, failed ones as `failed:code`.

        Args:
            within_s: seconds, at most 3,600. Up to ten minutes more count, too.
        """
        counts = Counter[str]()
        for texts in chain.from_iterable(self._hashes(lane, within_s) for lane in self._lanes):
            for name, text in (texts or {}).items():
                if (count := parse_count(text)) is not None:
                    counts[name] += count
        return dict(counts)

    def failed(self, limit: int) -> list[str]:
        """Return the ids of the jobs that failed last, the latest first. Some may have been deleted
        or redriven since. At most 1,000 are kept."""
        failed: list[tuple[str, float]] = []
        for lane in self._lanes:
            key = failed_jobs_key(lane.namespace)
            failed += read_key(lane.client, _reader_of_latest(key, limit)) or ()
        failed.sort(key=lambda job: job[1], reverse=True)  # stable: one lane is in order already
        return [job_id for job_id, _ in failed[:limit]]

    @staticmethod
    def _hashes(lane: Lane, within_s: int) -> list[dict[str, str] | None]:
        """Return what each period of one lane counts; None for a key that holds something else."""
        now, _ = lane.client.time()
        latest = int(now // PERIOD_S)
        with lane.client.pipeline(transaction=False) as pipe:
            for age in range(within_s // PERIOD_S + 1):
                pipe.hgetall(job_ends_key(lane.namespace, latest - age))
            return read_ignoring_wrong_types(pipe)


def _reader_of_latest(key: str, limit: int) -> "Callable[[Pipeline], object]":
    return lambda pipe: pipe.zrevrange(key, 0, limit - 1, withscores=True)
