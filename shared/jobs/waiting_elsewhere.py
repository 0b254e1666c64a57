"""Count the jobs that wait in other lanes, for the limits of tenants.

A lane counts its own jobs in the step in which it accepts more. Those of other lanes are asked for
by the process that submits, so limits hold also while no worker is alive.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

from imagefleet.shared.jobs.redis_keys import known_queues_key, limits_key
from imagefleet.shared.jobs.tenants import ALL_TENANTS
from imagefleet.shared.redis_client.each_lane import start_asking
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.scripts import load_script

log = logging.getLogger(__name__)

_MAX_AGE_S: Final = 1.0
"""A count is used for so long, with what this process has submitted since."""
_ANSWER_S: Final = 2.0
"""Submissions wait so long for the answer of a lane."""
_RETRY_S: Final = 30.0
"""A lane that has not answered is asked again after so long. Submissions do not wait for it."""


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The waiting jobs of one lane, by tenant; `*` stands for all."""

    jobs: Counter[str] = field(default_factory=Counter)
    until: float = float("-inf")
    """The count is used until then (monotonic), for the tenants that are in it."""
    asked_at: float = float("-inf")
    """The lane was asked then (monotonic), and has not answered yet."""
    answer: "Future[None]" = field(default_factory=Future)
    """It is done once the lane has answered, or has failed."""


class WaitingElsewhere:
    """This class counts the waiting jobs of tenants with a limit. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        parts = ("count_waiting", "count_limited")
        self._script = load_script(lanes.first.client, __package__, *parts)
        self._counted = [_Counted() for _ in lanes]
        self._lock = threading.Lock()

    def count(self, number: int, tenants: Collection[str]) -> dict[str, int]:
        """Return how many jobs of each of `tenants` that has a limit wait in all lanes but one; `*`
        stands for all tenants.

        The numbers are at most a second old. A lane that does not answer counts as it did last.
        """
        others = [lane for lane in self._lanes if lane.number != number]
        asked = [lane for lane in others if self._ask_if_due(lane, tenants)]
        for lane in asked:
            self._wait_for(lane)
        total = Counter[str]()
        for lane in others:
            total.update(self._counted[lane.number].jobs)
        return {tenant: total[tenant] for tenant in tenants}

    def add(self, number: int, tenants: Iterable[str]) -> None:
        """Count jobs of these tenants that a lane has just accepted."""
        new = Counter(tenants)
        new[ALL_TENANTS] = new.total()
        with self._lock:
            counted = self._counted[number]
            jobs = Counter({name: jobs + new[name] for name, jobs in counted.jobs.items()})
            self._counted[number] = replace(counted, jobs=jobs)

    def _ask_if_due(self, lane: Lane, tenants: Collection[str]) -> bool:
        """Return whether the count of a lane is too old. Ask for it, unless that was done."""
        now = time.monotonic()
        with self._lock:
            counted = self._counted[lane.number]
            if now < counted.until and counted.jobs.keys() >= set(tenants):
                return False
            if now >= counted.asked_at + _RETRY_S:
                ask = partial(self._ask, lane, tenants, now)
                answer = start_asking(ask, f"waiting-{lane.number}")
                self._counted[lane.number] = replace(counted, asked_at=now, answer=answer)
        return True

    def _wait_for(self, lane: Lane) -> None:
        counted = self._counted[lane.number]
        left_s = counted.asked_at + _ANSWER_S - time.monotonic()
        if left_s > 0 and not wait([counted.answer], left_s).done:
            _warn(lane, f"has not answered within {_ANSWER_S:g} s")

    def _ask(self, lane: Lane, tenants: Collection[str], asked_at: float) -> None:
        import redis

        from imagefleet.shared.redis_client.write_errors import describe_failure

        keys = [known_queues_key(lane.namespace), limits_key(lane.namespace)]
        try:
            answer = cast(list[str | int], self._script(keys=keys, client=lane.client))
        except redis.RedisError as error:
            _warn(lane, describe_failure(error))
            return
        pairs = zip(answer[::2], answer[1::2], strict=True)
        jobs = Counter(dict.fromkeys(tenants, 0))  # it may have no limit in this lane
        jobs.update({str(tenant): int(number) for tenant, number in pairs})
        with self._lock:
            self._counted[lane.number] = _Counted(jobs=jobs, until=asked_at + _MAX_AGE_S)


def _warn(lane: Lane, what: str) -> None:
    log.warning("limits do not count what waits in lane %d now: it %s", lane.number, what)
