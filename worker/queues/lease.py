"""The lease of a worker, and the leases of all: a worker without one loses its claims.

Input: a worker's name and a length in seconds. Output: a lease. This module does not depend on
messages.
"""

import threading
import time
from typing import Any, Final, cast

import redis

from imagefleet.shared.jobs.redis_keys import (
    claims_key,
    delayed_key,
    deliveries_key,
    drain_requests_key,
    lease_lengths_key,
    leases_key,
    workers_key,
)
from imagefleet.shared.redis_client.scripts import load_script

_REST_LENGTHS: Final = 8
"""A lease that rests is so many times as long: it is renewed so much less often."""
_RESTS: Final = 2
"""What `renew_lease.lua` returns of a lease that rests."""
_RESTING_FLEET: Final = 100
"""Leases rest in fleets of so many workers. There enough others hear what a heartbeat answers."""


class Lease:
    """The lease of one worker process. It belongs to the process, not to each message.

    In a fleet of several lanes it can rest where the worker holds nothing: then it is longer, until
    a claim brings messages.
    """

    def __init__(
        self, client: redis.Redis, namespace: str, worker: str, lease_s: float, lanes: int = 1
    ) -> None:
        self._worker = worker
        self.length_s: Final = lease_s
        self._rest_lengths = 1 if lanes == 1 else _REST_LENGTHS
        self._resting_s = lease_s * self._rest_lengths
        self._rests_until = 0.0
        self._ended_rests = 0
        self._lock = threading.Lock()
        """It guards how long the lease rests and is certain: claims change that, too."""
        self._prefix = claims_key(namespace, "")
        self._leases = [leases_key(namespace), lease_lengths_key(namespace)]
        self._deliveries = deliveries_key(namespace)
        self._later = delayed_key(namespace)
        self._status_keys = [workers_key(namespace), drain_requests_key(namespace)]
        self._certain_until = 0.0
        self._renewed_at = float("-inf")
        self.drain_requested = False
        """Whether, at the latest renewal, somebody had asked this worker to drain."""
        self.workers = 0
        """How many workers had a lease at the latest renewal."""
        self.tags_at_renewal: set[str] | None = None
        """The tags of the claims that Redis had at the latest renewal. None: they are unknown."""
        self.any_expired = False
        """Whether, at the latest renewal, a lease had expired or ended too late to be right."""
        self.any_due = False
        """Whether, at the latest renewal, delayed messages were due."""
        self.next_expiry_s = lease_s
        """Seconds from the latest renewal until the next lease expires. If that is before the next
        heartbeat, a worker is late or dead."""
        self._renew_lease = load_script(client, __package__, "renew_lease")
        self._reclaim_expired = load_script(client, __package__, "reclaim_expired")

    def acquire(self, status: str = "") -> None:
        """Acquire the lease, also after it was lost. `Claims.claim` needs it. It does not rest.

        Args:
            status: what `imagefleet fleet` shows of this worker; see `WorkerStatus.dump`.
        """
        self._renew(status, acquire=True)

    def renew(self, status: str = "", *, may_rest: bool = False) -> bool:
        """Renew the lease. Return False if it expired and others reclaimed the messages.

        Args:
            may_rest: in a large fleet the lease rests if the worker had no claims at this renewal
                and the one before: a server that failed over may have forgotten their end. It does
                not while another lease has expired or is about to.
        """
        may_rest &= self.tags_at_renewal == set() and self.workers >= _RESTING_FLEET
        return self._renew(status, acquire=False, may_rest=may_rest)

    @property
    def rests(self) -> bool:
        """Whether the lease needs no renewal now, as long as the worker holds nothing."""
        return time.monotonic() < self._rests_until

    def end_rest(self, claimed_at: float) -> None:
        """Note that a claim may have brought messages, and has made the lease short then."""
        with self._lock:
            self._ended_rests += 1
            self._rests_until = 0.0
            self._certain_until = min(self._certain_until, claimed_at + self.length_s)

    @property
    def was_held(self) -> bool:
        """Whether this object has acquired or renewed the lease before."""
        return self._certain_until > 0.0

    def was_renewed_since(self, moment: float) -> bool:
        """Return whether the lease was acquired or renewed after `moment` (monotonic)."""
        return self._renewed_at > moment

    def may_have_expired(self) -> bool:
        """Return whether the lease may have expired since it was acquired or renewed last."""
        return time.monotonic() >= self._certain_until

    def _renew(self, status: str, *, acquire: bool, may_rest: bool = False) -> bool:
        asked_at, ended_rests = time.monotonic(), self._ended_rests
        outcome, drain_requested, workers, tags, any_expired, any_due, next_expiry_s = cast(
            list[Any],
            self._renew_lease(
                keys=[*self._leases, *self._status_keys, self._prefix + self._worker, self._later],
                args=[
                    *(self._worker, self.length_s, int(acquire), status),
                    *(self._resting_s, int(may_rest)),
                ],
            ),
        )
        with self._lock:
            rests = outcome == _RESTS and ended_rests == self._ended_rests
            if outcome:
                self._renewed_at = asked_at
                self._certain_until = asked_at + (self._resting_s if rests else self.length_s)
            self._rests_until = self._certain_until - self.length_s if rests else 0.0
        self.drain_requested = bool(drain_requested)
        self.workers = workers
        self.tags_at_renewal = None if tags is None else set(tags)
        self.any_expired, self.any_due = bool(any_expired), bool(any_due)
        self.next_expiry_s = float(next_expiry_s)
        return bool(outcome)

    def release_all(self) -> int:
        """Requeue every message, give up the lease and return the number of messages."""
        return sum(count for _, count in self._reclaim(self._worker, 0))

    def reclaim_expired(self) -> list[tuple[str, int]]:
        """Requeue the messages of workers whose lease expired: (worker, messages) of each."""
        return self._reclaim("", 1)

    def _reclaim(self, worker: str, count: int) -> list[tuple[str, int]]:
        answer = self._reclaim_expired(
            keys=[*self._leases, self._deliveries, *self._status_keys],
            args=[self._prefix, worker, count, self.length_s, self._rest_lengths],
        )
        return [(name, messages) for name, messages in cast(list[Any], answer)]
