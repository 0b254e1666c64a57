"""Claims: which worker holds which queue message, and for how long.

A claim pops messages and notes their holder in one server-side call, so a worker that dies at any
instruction leaves them behind for others. The lease belongs to the worker process, not to each
message: renewing it is one command however many jobs are in flight, and a job may take as long as
it likes. Knows nothing of jobs: a message is an opaque string in an ordinary Celery queue.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import redis

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.queues import claims_key, known_queues_key, later_key, leases_key
from imagefleet.shared.jobs.tenants import weights_key
from imagefleet.shared.redis_client.scripts import call_all, script

log = logging.getLogger(__name__)

_NO_LIMIT: Final = 1_000_000
_WENT_BACK: Final = 2


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """One message in this worker's hands."""

    tag: str
    list_key: str
    message: str
    deliveries: int
    """1 the first time, one more after each worker that died with it."""
    attempt: str
    """What names this claim among all that were ever made, and whatever is tried with it."""


@dataclass(frozen=True, kw_only=True)
class QueueGroup:
    """Queues whose jobs may share a device batch: one compile key under several names."""

    name: str
    queues: tuple[str, ...]
    bulk: bool = False
    """Shards of datasets, not jobs."""


class Claims:
    """The claims of one worker process. Threads may share it; one of them claims.

    Claims go through `once`, a client that does not retry by itself: a claim whose answer got lost
    has happened, and asking again would take more. The keeper hands such messages back.
    Acks go through `patient`, which waits for Redis to come back. Both end where they started if
    they happen twice.
    """

    def __init__(
        self,
        *,
        once: redis.Redis,
        patient: redis.Redis,
        namespace: str,
        worker: str,
        lease_s: float,
    ) -> None:
        self.worker: Final = worker
        self._redis = once
        self._patient = patient
        self._held: set[str] = set()
        self._claims_made = 0
        self._claiming = threading.Lock()
        self._lease_s = lease_s
        self._prefix = claims_key(namespace, "")
        self._leases = leases_key(namespace)
        self._deliveries = f"{namespace}:deliveries"
        self._later = later_key(namespace)
        self._known_queues = known_queues_key(namespace)
        self._weights = weights_key(namespace)
        self._accounts = "{}"
        self._claim = script(once, __package__, "fair_queueing", "step_affinity", "claim")
        self._renew = script(once, __package__, "renew_lease")
        self._sweep = script(once, __package__, "reclaim_expired")
        self._put_aside = script(once, __package__, "delay")
        self._release = script(patient, __package__, "release")

    @property
    def key(self) -> str:
        """The hash that holds this worker's claims: tag to message."""
        return self._prefix + self.worker

    def acquire_lease(self) -> None:
        """Take (or take again) a lease. Nothing can be claimed without one."""
        self._renew(keys=[self._leases], args=[self.worker, self._lease_s, 1])

    def renew(self) -> bool:
        """Keep the lease. False if it ran out and others took the messages over."""
        return bool(self._renew(keys=[self._leases], args=[self.worker, self._lease_s, 0]))

    def claim(
        self,
        groups: Sequence[QueueGroup],
        want: int,
        *,
        most: int = _NO_LIMIT,
        suspect_from: int = _NO_LIMIT,
        aside: Collection[str] = (),
        usual_steps: int = 0,
        longest: int = 0,
    ) -> list[Claimed]:
        """Take messages until they hold `want` pictures, all of one group, highest priority first.

        Inside a priority level tenants take turns by their weights, the groups of a tenant and the
        queues of a group evenly; whose turn it is, this object remembers from call to call. A
        message is taken whole: the last one may bring more pictures than were wanted.
        A queue gives its head first, and then what is like the batch in steps: see alike.lua.
        From its delivery `suspect_from` on a message is taken alone, and only while nothing else
        is in hand.

        Args:
            groups: where to look; queues of tenants beside them are found by themselves.
            want: pictures, at least 1.
            most: messages.
            aside: tags in hand that do not count as such beside a suspect.
            usual_steps: denoising steps of a message that says none.
            longest: steps of the longest job that shares the batch already.

        Raises:
            LeaseLost: join again first.
            redis.RedisError: what was taken, if anything, `requeue_orphans` hands back.
        """
        self._claims_made += 1
        ask = {
            "claim": self._claims_made,
            "worker": self.worker,
            "groups": {queue: group.name for group in groups for queue in group.queues},
            "pictures": want,
            "messages": most,
            "suspect": suspect_from,
            "idle": self._held <= set(aside),
            "usual": usual_steps,
            "longest": longest,
        }
        with self._claiming:
            claimed = self._take(ask)
            self._held.update(message.tag for message in claimed)
        return claimed

    def _take(self, ask: dict[str, Any]) -> list[Claimed]:
        answer = cast(
            list[Any] | None,
            self._claim(
                keys=[
                    self.key,
                    self._leases,
                    self._deliveries,
                    self._known_queues,
                    self._weights,
                ],
                args=[json.dumps(ask), self._accounts],
            ),
        )
        if answer is None:
            raise LeaseLost(f"the lease of {self.worker} ran out")
        self._accounts, taken = answer
        return [
            Claimed(
                tag=tag,
                list_key=key,
                message=message,
                deliveries=deliveries,
                attempt=self.attempt(tag),
            )
            for tag, key, message, deliveries in taken
        ]

    def ack(self, tag: str, record: str = "", *, shard: str = "") -> bool:
        """The message is done with. False if it was no longer ours.

        Args:
            record: key of the job's record. If that says queued, or running by the attempt of this
                claim, the message goes back to the head of its queue instead: the server was a
                replica when the job ended, and has never heard of it.
            shard: field of `record` that holds a shard's.
        """
        keys = [self.key, self._deliveries, *filter(None, [record])]
        try:
            outcome = self._release(keys=keys, args=[tag, 0, 0, self.attempt(tag), shard])
        finally:
            self._let_go([tag])
        if outcome == _WENT_BACK:
            log.warning("%s %s: Redis does not know its end; it is done again", record, shard)
        return bool(outcome)

    def attempt(self, tag: str) -> str:
        """See `Claimed.attempt`."""
        return f"{self.worker}/{tag}"

    def requeue(self, *tags: str, counted: bool = False) -> int:
        """Put messages back to the head of their queues, in one round trip.

        The last tag ends foremost. Messages that are no longer ours are left alone.

        Args:
            counted: count a delivery, as if this worker had died with them.

        Returns:
            How many messages were put back.
        """
        return self._put_back(tags, counted=counted)

    def delay(self, tag: str, due: float) -> bool:
        """Let go of a message that is not `due` (Unix seconds): then it comes back to the head of
        its queue. False if it is due already, by Redis' clock."""
        if not self._put_aside(keys=[self.key, self._later], args=[tag, due]):
            return False
        self._held.discard(tag)
        return True

    def reset_deliveries(self, message: str) -> None:
        """It has made progress here: the workers that died with it before count no more."""
        self._patient.hdel(self._deliveries, hashlib.sha1(message.encode()).hexdigest())

    def find(self, tag: str) -> tuple[str, str] | None:
        """Queue list and message of a claim; None if it is no longer ours."""
        entry = cast(str | None, self._redis.hget(self.key, tag))
        if entry is None:
            return None
        list_key, _, message = entry.partition("\0")
        return list_key, message

    def requeue_orphans(self) -> int:
        """Hand back what stands among our claims and is not ours: a claim whose answer got lost, or
        one that was let go and that a Redis which restarted or failed over remembers. How many."""
        with self._claiming:
            strays = set(cast(list[str], self._redis.hkeys(self.key))) - self._held
        youngest_first = sorted(strays, key=float, reverse=True)
        return self._put_back(youngest_first, client=self._redis)

    def holds(self, tag: str) -> bool:
        """Whether the message is neither acknowledged nor handed back yet."""
        return tag in self._held

    def leave(self) -> int:
        """Hand everything back at once and give up the lease. The number of messages."""
        return sum(count for _, count in self._swept(self.worker, 0))

    def reclaim_expired(self) -> list[tuple[str, int]]:
        """Put back the messages of workers whose lease ran out: (worker, messages) each."""
        return self._swept("", 1)

    def _put_back(
        self, tags: Collection[str], *, counted: bool = False, client: redis.Redis | None = None
    ) -> int:
        keys = [self.key, self._deliveries]
        calls = [(keys, [tag, 1, int(counted)]) for tag in tags]
        try:
            return sum(call_all(self._release, client or self._patient, calls))
        finally:
            self._let_go(tags)

    def _let_go(self, tags: Collection[str]) -> None:
        """What Redis refused to let go of is a stray from now on: nobody here works on it."""
        self._held.difference_update(tags)

    def _swept(self, worker: str, count: int) -> list[tuple[str, int]]:
        answer = self._sweep(
            keys=[self._leases, self._deliveries], args=[self._prefix, worker, count]
        )
        return [(name, messages) for name, messages in cast(list[Any], answer)]
