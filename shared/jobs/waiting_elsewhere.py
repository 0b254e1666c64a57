"""Count the jobs that wait in other lanes, for the limits of tenants.

A lane counts its own jobs in the step in which it accepts more. Those of other lanes are asked for
by the process that submits, so limits hold also while no worker is alive.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, cast

from imagefleet.shared.jobs.redis_keys import known_queues_key, limits_key
from imagefleet.shared.jobs.tenants import ALL_TENANTS
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.scripts import load_script

log = logging.getLogger(__name__)

_MAX_AGE_S: Final = 1.0
"""A count is used for so long, with what this process has submitted since."""
_RETRY_S: Final = 10.0
"""A lane that does not answer is asked again after so long. The others do not wait for it."""


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The waiting jobs of one lane, by tenant with a limit; `*` stands for all."""

    jobs: Counter[str] = field(default_factory=Counter)
    until: float = float("-inf")
    """The count is used until then (monotonic), for the tenants that are in it."""
    paused_until: float = float("-inf")
    """The lane is not asked before."""


class WaitingElsewhere:
    """This class counts the waiting jobs of tenants with a limit. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        parts = ("count_waiting", "count_limited")
        self._script = load_script(lanes.first.client, __package__, *parts)
        self._counted = [_Counted() for _ in lanes]

    def count(self, number: int, tenants: Collection[str]) -> dict[str, int]:
        """Return how many jobs of each of `tenants` that has a limit wait in all lanes but one; `*`
        stands for all tenants.

        The numbers are at most a second old. A lane that does not answer counts as it did last.
        """
        total = Counter[str]()
        for lane in self._lanes:
            if lane.number != number:
                total.update(self._count(lane, tenants))
        return {tenant: total[tenant] for tenant in tenants}

    def add(self, number: int, tenants: Iterable[str]) -> None:
        """Count jobs of these tenants that a lane has just accepted."""
        counted = self._counted[number]
        if counted.jobs:
            new = Counter(tenants)
            new[ALL_TENANTS] = new.total()
            jobs = Counter({name: jobs + new[name] for name, jobs in counted.jobs.items()})
            self._counted[number] = replace(counted, jobs=jobs)

    def _count(self, lane: Lane, tenants: Collection[str]) -> Counter[str]:
        import redis

        counted, now = self._counted[lane.number], time.monotonic()
        is_known = now < counted.until and counted.jobs.keys() >= set(tenants)
        if is_known or now < counted.paused_until:
            return counted.jobs
        keys = [known_queues_key(lane.namespace), limits_key(lane.namespace)]
        try:
            answer = cast(list[str | int], self._script(keys=keys, client=lane.client))
        except redis.RedisError as error:
            log.warning("limits do not count what waits in lane %d now: %s", lane.number, error)
            self._counted[lane.number] = replace(counted, paused_until=time.monotonic() + _RETRY_S)
            return counted.jobs
        pairs = zip(answer[::2], answer[1::2], strict=True)
        jobs = Counter({str(tenant): int(number) for tenant, number in pairs})
        self._counted[lane.number] = _Counted(jobs=jobs, until=now + _MAX_AGE_S)
        return jobs
