"""Call `claim.lua` for one worker, and keep the accounts of turns between its calls.

The description of a claim comes in, as the script defines it; what the script claimed comes out.
"""

import json
from typing import Any, cast

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
        self._accounts = {False: "{}", True: "{}"}
        """Of jobs, and of shards: each kind of claim rotates through the known queues by itself."""
        parts = ("known_queues", "fair_queueing", "step_affinity", "claim")
        self._script = load_script(client, __package__, *parts)

    def run(self, request: dict[str, Any], *, bulk: bool) -> list[tuple[str, str, str, int, int]]:
        """Claim messages. Return (tag, list, message, delivery, 1 if it is cut) of each.

        Raises:
            LeaseLost: the worker has no lease.
        """
        self.number += 1
        named = {**request, "claim_number": self.number, "worker": self._worker}
        answer = cast(
            list[Any] | None,
            self._script(keys=self._keys, args=[json.dumps(named), self._accounts[bulk]]),
        )
        if answer is None:
            raise LeaseLost(f"the lease of {self._worker} ran out")
        self._accounts[bulk], claimed = answer
        return [tuple(fields) for fields in claimed]

    def accounts_length(self) -> int:
        """Return the characters of the accounts, which each claim sends and receives."""
        return max(map(len, self._accounts.values()))
