"""Give each stalled run to one worker, which recovers it.

A run is stalled if none of its shards has changed for a while: perhaps its messages are lost.
`worker.bulk.recover_runs` recovers them.
"""

import re
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.bulk.redis_keys import (
    index_key,
    outbox_keys,
    run_key,
    search_throttle_key,
    stalled_runs_key,
)
from imagefleet.shared.bulk.run_events import IDLE_FACTOR
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types

if TYPE_CHECKING:
    from redis import Redis

_MAX_RUNS: Final = 1_000
"""The latest runs that `longest_idle_s` reads."""
_SECONDS: Final = re.compile("[0-9]{1,12}")


class StalledRuns:
    """Finds the stalled runs of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self._find_script = load_script(
            client, __package__, "run_events", "find_stalled", outbox=True
        )

    def find(self, stalled_s: float) -> str | None:
        """Return a running run in which nothing has changed for `stalled_s`, or None.

        The caller recovers it and then calls `recovery_ended` or `release`. No other caller gets
        the run until it has been stalled for twice as long, or for 10 minutes more. So a caller
        that dies delays this run for a limited time, and no other run. If callers die with the run
        one after the other, the pauses grow up to a day.
        """
        keys = [
            make(self._namespace) for make in (index_key, search_throttle_key, stalled_runs_key)
        ]
        keys += outbox_keys(self._namespace)
        seconds = (stalled_s, IDLE_FACTOR * stalled_s)
        run = self._find_script(keys=keys, args=[run_key(self._namespace, ""), *seconds])
        return cast(str | None, run)

    def longest_idle_s(self) -> float:
        """Return the longest time for which nothing has changed in a running run, in seconds. 0 if
        no run is running."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrevrange(index_key(self._namespace), 0, _MAX_RUNS - 1)
            pipe.time()
            runs, (now, _) = read_ignoring_wrong_types(pipe)
        with self._redis.pipeline(transaction=False) as pipe:
            for run in runs or ():
                pipe.hmget(run_key(self._namespace, run), "state", "moved_at")
            records = read_ignoring_wrong_types(pipe)
        moved_at = [
            int(text)
            for state, text in filter(None, records)
            if state == State.RUNNING and text is not None and _SECONDS.fullmatch(text)
        ]
        return max(0.0, float(now - min(moved_at, default=now)))

    def recovery_ended(self, run: str) -> None:
        """Record that the recovery of a run did not end its caller, whether it helped or not."""
        self._count_down(run)

    def release(self, run: str) -> None:
        """Let the next search return a run that this caller cannot recover, unless others have died
        with it."""
        if not self._count_down(run):
            self._redis.hdel(run_key(self._namespace, run), "looked_at")

    def _count_down(self, run: str) -> int:
        """Return how many others have the run, or have died with it since its last change."""
        key = run_key(self._namespace, run)
        others = self._redis.hincrby(key, "unfinished_recoveries", -1)
        if others <= 0:  # also of a run that has changed or expired meanwhile
            self._redis.hdel(key, "unfinished_recoveries")
        return max(0, others)
