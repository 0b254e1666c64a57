"""Call `claim.lua` for one worker, and keep its fair-queueing state between the calls.

Input: the description of a claim, as the script defines it. Output: what the script claimed.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, Final, cast

import redis

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.redis_keys import (
    claims_key,
    deliveries_key,
    known_queues_key,
    leases_key,
    weights_key,
)
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.worker.queues.claim_types import Claimed, attempt_name
from imagefleet.worker.queues.lease import Lease

_NO_PAUSE_WORKERS: Final = 8
"""This many workers need no pause: an empty claim takes Redis 0.1 to 0.2 ms."""


@dataclass(kw_only=True)
class _ClaimKind:
    """A claim is for jobs or for shards. Each kind has its own pauses and takes its own turns."""

    pause_per_worker_s: float
    """A worker pauses after an empty claim for this time, once for each worker of the fleet. So
    idle workers cost Redis no more the more of them there are."""
    max_pause_s: float
    fair_queueing_state: str = "{}"
    """JSON that says whose turn is next. The script returns it and gets it back."""


class ClaimScript:
    """The script of one worker in one of `lanes`. One thread calls it."""

    def __init__(
        self,
        client: redis.Redis,
        namespace: str,
        worker: str,
        lease: Lease,
        lane: int = 0,
        lanes: int = 1,
    ) -> None:
        self.number = lane
        """It is the number of the latest claim. Its tags begin with it. Its rest modulo the number
        of lanes is the lane, so that no two lanes of a worker have equal tags."""
        self._lanes = lanes
        self._worker = worker
        self._lease = lease
        self._keys = [
            claims_key(namespace, worker),
            leases_key(namespace),
            deliveries_key(namespace),
            known_queues_key(namespace),
            weights_key(namespace),
        ]
        self._jobs = _ClaimKind(pause_per_worker_s=0.004, max_pause_s=1.0)
        # A worker looks into all lanes for shards as often as into one: there are rarely any.
        self._shards = _ClaimKind(pause_per_worker_s=0.02, max_pause_s=5.0 * lanes)
        self._paused_until: dict[frozenset[str], float] = {}
        """Queues that were empty are not looked at before this time (monotonic)."""
        parts = ("known_queues", "fair_queueing", "step_affinity", "claim")
        self._script = load_script(client, __package__, *parts)

    def run(self, request: dict[str, Any], *, bulk: bool) -> list[Claimed]:
        """Claim messages and return them.

        In a large fleet the queues that were empty a moment ago are not looked at.

        Raises:
            LeaseLost: the worker has no lease.
        """
        queues = frozenset(request["groups"])
        if time.monotonic() < self._paused_until.get(queues, 0.0):
            return []
        self.number += self._lanes
        kind = self._shards if bulk else self._jobs
        asked_at, claimed = time.monotonic(), None
        try:
            claimed, workers = self._call(request, kind)
        finally:
            if claimed != []:  # it has brought messages, or may have done so
                self._lease.end_rest(asked_at)
        if not claimed and workers > _NO_PAUSE_WORKERS:
            pause_s = min(workers * kind.pause_per_worker_s, kind.max_pause_s)
            self._paused_until[queues] = time.monotonic() + pause_s
        return [self._describe(*fields) for fields in claimed]

    def _call(self, request: dict[str, Any], kind: _ClaimKind) -> tuple[list[Any], int]:
        """Return what the script claimed, and how many workers have a lease."""
        named = {**request, "claim_number": self.number, "worker": self._worker}
        if self._lanes > 1:
            named["lease_s"] = self._lease.length_s
        answer = cast(
            list[Any] | None,
            self._script(keys=self._keys, args=[json.dumps(named), kind.fair_queueing_state]),
        )
        if answer is None:
            raise LeaseLost(f"the lease of {self._worker} ran out")
        kind.fair_queueing_state, claimed, workers = answer
        return claimed, workers

    def _describe(
        self, tag: str, list_key: str, message: str, deliveries: int, is_cut: int
    ) -> Claimed:
        return Claimed(
            tag=tag,
            list_key=list_key,
            message=message,
            deliveries=deliveries,
            attempt=attempt_name(self._worker, tag),
            too_long=bool(is_cut),
        )

    def state_length(self) -> int:
        """Return the characters of the fair-queueing state, which each claim sends and receives."""
        return max(len(kind.fair_queueing_state) for kind in (self._jobs, self._shards))
