"""Call `claim.lua` for one worker, and keep its fair-queueing state between the calls.

Input: the description of a claim, as the script defines it. Output: what the script claimed.
"""

import json
import time
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

_PAUSE_PER_WORKER_S: Final = {False: 0.004, True: 0.02}
"""Seconds that a worker pauses after an empty claim, for each worker of the fleet; by whether the
claim was for shards. So idle workers cost Redis no more the more of them there are."""
_MAX_PAUSE_S: Final = {False: 1.0, True: 5.0}
_NO_PAUSE_WORKERS: Final = 8
"""So many workers need no pause: an empty claim takes Redis 0.1 to 0.2 ms."""


class ClaimScript:
    """The script of one worker. One thread calls it."""

    def __init__(self, client: redis.Redis, namespace: str, worker: str) -> None:
        self.number = 0
        """Number of the latest claim. Its tags begin with it."""
        self._worker = worker
        self._keys = [
            claims_key(namespace, worker),
            leases_key(namespace),
            deliveries_key(namespace),
            known_queues_key(namespace),
            weights_key(namespace),
        ]
        self._fair_queueing_state = {False: "{}", True: "{}"}
        """Of jobs, and of shards: each kind of claim rotates through the known queues by itself."""
        self._paused_until: dict[frozenset[str], float] = {}
        """By queues: until when they are not looked at, because they were empty (monotonic)."""
        parts = ("known_queues", "fair_queueing", "step_affinity", "claim")
        self._script = load_script(client, __package__, *parts)

    def run(self, request: dict[str, Any], *, bulk: bool) -> list[tuple[str, str, str, int, int]]:
        """Claim messages. Return (tag, list, message, delivery, 1 if it is cut) of each.

        In a large fleet the queues that were empty a moment ago are not looked at.

        Raises:
            LeaseLost: the worker has no lease.
        """
        queues = frozenset(request["groups"])
        if time.monotonic() < self._paused_until.get(queues, 0.0):
            return []
        self.number += 1
        named = {**request, "claim_number": self.number, "worker": self._worker}
        answer = cast(
            list[Any] | None,
            self._script(
                keys=self._keys, args=[json.dumps(named), self._fair_queueing_state[bulk]]
            ),
        )
        if answer is None:
            raise LeaseLost(f"the lease of {self._worker} ran out")
        self._fair_queueing_state[bulk], claimed, workers = answer
        if not claimed and workers > _NO_PAUSE_WORKERS:
            pause_s = min(workers * _PAUSE_PER_WORKER_S[bulk], _MAX_PAUSE_S[bulk])
            self._paused_until[queues] = time.monotonic() + pause_s
        return [tuple(fields) for fields in claimed]

    def state_length(self) -> int:
        """Return the characters of the fair-queueing state, which each claim sends and receives."""
        return max(map(len, self._fair_queueing_state.values()))
