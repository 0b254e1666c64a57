"""The lease of a worker, and the leases of all: a worker without one loses its claims.

Inputs are a worker's name and a length in seconds. This module does not know messages.
"""

from typing import Any, Final, cast

import redis

from imagefleet.shared.jobs.redis_keys import (
    claims_key,
    deliveries_key,
    drain_requests_key,
    lease_lengths_key,
    leases_key,
    workers_key,
)
from imagefleet.shared.redis_client.scripts import load_script


class Lease:
    """The lease of one worker process. It belongs to the process, not to each message."""

    def __init__(self, client: redis.Redis, namespace: str, worker: str, lease_s: float) -> None:
        self.worker: Final = worker
        self._redis = client
        self._lease_s = lease_s
        self._prefix = claims_key(namespace, "")
        self._leases = [leases_key(namespace), lease_lengths_key(namespace)]
        self._deliveries = deliveries_key(namespace)
        self._status_keys = [workers_key(namespace), drain_requests_key(namespace)]
        self._renew_lease = load_script(client, __package__, "renew_lease")
        self._reclaim_expired = load_script(client, __package__, "reclaim_expired")

    def acquire_lease(self) -> None:
        """Acquire the lease, also after it was lost. `claim` needs one."""
        self._renew_lease(keys=self._leases, args=[self.worker, self._lease_s, 1])

    def renew_lease(self) -> bool:
        """Renew the lease. Return False if it expired and others reclaimed the messages."""
        return bool(self._renew_lease(keys=self._leases, args=[self.worker, self._lease_s, 0]))

    def count_workers(self) -> int:
        """Return how many workers hold a lease."""
        return self._redis.zcard(self._leases[0])

    def release_all(self) -> int:
        """Requeue every message, give up the lease and return the number of messages."""
        return sum(count for _, count in self._reclaim(self.worker, 0))

    def reclaim_expired(self) -> list[tuple[str, int]]:
        """Requeue the messages of workers whose lease expired: (worker, messages) of each."""
        return self._reclaim("", 1)

    def _reclaim(self, worker: str, count: int) -> list[tuple[str, int]]:
        answer = self._reclaim_expired(
            keys=[*self._leases, self._deliveries, *self._status_keys],
            args=[self._prefix, worker, count, self._lease_s],
        )
        return [(name, messages) for name, messages in cast(list[Any], answer)]
