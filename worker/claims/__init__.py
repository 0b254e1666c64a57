"""Claims: which worker holds which queue message, and for how long.

A claim pops messages and notes their holder in one server-side call, so a worker that dies at any
instruction leaves them behind for others. The lease belongs to the worker process, not to each
message: renewing it is one command however many jobs are in flight, and a job may take as long as
it likes. Knows nothing of jobs: a message is an opaque string in an ordinary Celery queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, cast

import redis
from redis.commands.core import Script

from shared.errors import LeaseLost
from shared.queues import PRIORITY_STEPS, list_key


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """One message in this worker's hands."""

    tag: str
    list_key: str
    message: str
    deliveries: int
    """1 the first time, one more after each worker that died with it."""


@dataclass(frozen=True, kw_only=True)
class QueueGroup:
    """Queues whose jobs may share a device batch: one compile key under several names."""

    name: str
    queues: tuple[str, ...]


class Claims:
    """The claims of one worker process. Threads may share it; one of them claims.

    Claims go through `once`, a client that does not retry by itself: a claim whose answer got lost
    has happened, and asking again would take more. The next claim hands such messages back first.
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
        self._held: set[str] = set()
        self._unsure = False
        self._lease_s = lease_s
        self._prefix = f"{namespace}:claims:"
        self._leases = f"{namespace}:leases"
        self._deliveries = f"{namespace}:deliveries"
        self._counter = f"{namespace}:claims-made"
        self._turn = 0
        self._claim = _script(once, "claim")
        self._renew = _script(once, "renew")
        self._sweep = _script(once, "sweep")
        self._release = _script(patient, "release")

    @property
    def key(self) -> str:
        """The hash that holds this worker's claims: tag to message."""
        return self._prefix + self.worker

    def join(self) -> None:
        """Take (or take again) a lease. Nothing can be claimed without one."""
        self._renew(keys=[self._leases], args=[self.worker, self._lease_s, 1])

    def renew(self) -> bool:
        """Keep the lease. False if it ran out and others took the messages over."""
        return bool(self._renew(keys=[self._leases], args=[self.worker, self._lease_s, 0]))

    def claim(
        self, groups: Sequence[QueueGroup], want: int, *, suspect_from: int = 1000
    ) -> list[Claimed]:
        """Take up to `want` messages, all of one group, highest priority first.

        Inside a priority level queues take turns; which group goes first rotates call by call.
        From its delivery `suspect_from` on a message is taken alone, and only while nothing else
        is in hand.

        Raises:
            LeaseLost: join again first.
            redis.RedisError: what was taken, if anything, is handed back by the next call.
        """
        if self._unsure:
            self._hand_back_strays()
        self._unsure = True
        claimed = self._take(groups, want, suspect_from)
        self._held.update(message.tag for message in claimed)
        self._unsure = False
        return claimed

    def _take(self, groups: Sequence[QueueGroup], want: int, suspect_from: int) -> list[Claimed]:
        self._turn += 1
        start = self._turn % len(groups)
        ordered = [*groups[start:], *groups[:start]]
        lists = [
            (list_key(queue, level), f"{level}:{group.name}")
            for level in PRIORITY_STEPS
            for group in ordered
            for queue in group.queues
        ]
        answer = cast(
            list[Any] | None,
            self._claim(
                keys=[
                    self._prefix + self.worker,
                    self._leases,
                    self._deliveries,
                    self._counter,
                    *(key for key, _ in lists),
                ],
                args=[
                    self.worker,
                    want,
                    suspect_from,
                    int(not self._held),
                    *(place for _, place in lists),
                ],
            ),
        )
        if answer is None:
            raise LeaseLost(f"the lease of {self.worker} ran out")
        return [
            Claimed(tag=tag, list_key=key, message=message, deliveries=deliveries)
            for tag, key, message, deliveries in answer
        ]

    def _hand_back_strays(self) -> None:
        for tag in cast(list[str], self._redis.hkeys(self._prefix + self.worker)):
            if tag not in self._held:
                self.hand_back(tag)

    def ack(self, tag: str) -> bool:
        """The message is done with. False if it was no longer ours."""
        return self._let_go(tag, back=False)

    def hand_back(self, tag: str) -> bool:
        """Put a message back to the head of its queue, uncounted. False if no longer ours."""
        return self._let_go(tag, back=True)

    def doubt(self) -> None:
        """Redis was away, and may have come back without an ack it had confirmed."""
        self._unsure = True

    def holds(self, tag: str) -> bool:
        """Whether the message is neither acknowledged nor handed back yet."""
        return tag in self._held

    def leave(self) -> int:
        """Hand everything back at once and give up the lease. The number of messages."""
        return sum(count for _, count in self._swept(self.worker, 0))

    def sweep(self) -> list[tuple[str, int]]:
        """Put back the messages of workers whose lease ran out: (worker, messages) each."""
        return self._swept("", 1)

    def _let_go(self, tag: str, *, back: bool) -> bool:
        keys = [self._prefix + self.worker, self._deliveries]
        ours = bool(self._release(keys=keys, args=[tag, int(back)]))
        self._held.discard(tag)
        return ours

    def _swept(self, worker: str, count: int) -> list[tuple[str, int]]:
        answer = self._sweep(
            keys=[self._leases, self._deliveries], args=[self._prefix, worker, count]
        )
        return [(name, messages) for name, messages in cast(list[Any], answer)]


def _script(client: redis.Redis, name: str) -> Script:
    return client.register_script(files(__package__).joinpath(f"{name}.lua").read_text())
