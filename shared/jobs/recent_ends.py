"""Read how many jobs ended within the last hour, by state and error code, and which failed last.

`job_ends.lua` notes both in the step in which a job ends, in workers of release 0.2.0 and later.
"""

from typing import TYPE_CHECKING

from imagefleet.shared.jobs.host_failures import PERIOD_S
from imagefleet.shared.jobs.model import parse_count
from imagefleet.shared.jobs.redis_keys import failed_jobs_key, job_ends_key
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types, read_key

if TYPE_CHECKING:
    from redis import Redis


class RecentEnds:
    """This class reads the recent ends of the jobs of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace

    def counts(self, within_s: int) -> dict[str, int]:
        """Return the numbers of jobs by state, failed ones as `failed:code`.

        Args:
            within_s: seconds, at most 3,600. Up to ten minutes more count, too.
        """
        now, _ = self._redis.time()
        latest = int(now // PERIOD_S)
        with self._redis.pipeline(transaction=False) as pipe:
            for age in range(within_s // PERIOD_S + 1):
                pipe.hgetall(job_ends_key(self._namespace, latest - age))
            hashes = read_ignoring_wrong_types(pipe)
        counts: dict[str, int] = {}
        for texts in hashes:
            for name, text in (texts or {}).items():
                if (count := parse_count(text)) is not None:
                    counts[name] = counts.get(name, 0) + count
        return counts

    def failed(self, limit: int) -> list[str]:
        """Return the ids of the jobs that failed last, the latest first. Some may have been deleted
        or redriven since. At most 1,000 are kept."""
        key = failed_jobs_key(self._namespace)
        ids: list[str] | None = read_key(
            self._redis, lambda pipe: pipe.zrevrange(key, 0, limit - 1)
        )
        return ids or []
