"""Read how many jobs ended within the last hour, by state and error code, and which failed last.

`job_ends.lua` notes both in the step in which a job ends, in workers of release 0.2.0 and later.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from imagefleet.shared.jobs.host_failures import PERIOD_S
from imagefleet.shared.jobs.model import parse_count
from imagefleet.shared.jobs.redis_keys import failed_jobs_key, job_ends_key
from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types, read_key

if TYPE_CHECKING:
    from redis.client import Pipeline

ANSWER_S: Final = 3.0
"""Seconds that all lanes together have for an answer."""


class RecentEnds:
    """This class reads the recent ends of the jobs of a fleet. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def counts(self, within_s: int) -> dict[str, int]:
        """Return the numbers of jobs by state, failed ones as `failed:code`, of the lanes that
        answer.

        Args:
            within_s: seconds, at most 3,600. Up to ten minutes more count, too.
        """
        counts = Counter[str]()
        asks = {lane.number: partial(self._hashes, lane, within_s) for lane in self._lanes}
        answers = ask_at_once(asks, len(self._lanes), ANSWER_S, "its ends do not count")
        for texts in chain.from_iterable(answers.values()):
            for name, text in (texts or {}).items():
                if (count := parse_count(text)) is not None:
                    counts[name] += count
        return dict(counts)

    def failed(self, limit: int) -> list[str]:
        """Return the ids of the jobs that failed last, the latest first. Some may have been deleted
        or redriven since. At most 1,000 are kept. Those of a lane that does not answer are left
        out."""

        def read(lane: Lane) -> list[tuple[str, float]]:
            key = failed_jobs_key(lane.namespace)
            return read_key(lane.client, _reader_of_latest(key, limit)) or []

        asks = {lane.number: partial(read, lane) for lane in self._lanes}
        answers = ask_at_once(asks, len(self._lanes), ANSWER_S, "its failed jobs are left out")
        failed = list(chain.from_iterable(answers.values()))
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
