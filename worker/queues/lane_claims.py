"""The claims of one worker in every lane of a fleet: one batch comes from several lanes.

Input: queue names, as the fleet spells them. Output: messages. Each lane has its own `Claims`, with
its own lease and its own turns. This module does not depend on jobs.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self, TypeVar

import redis

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.queues import queue_of_compile_key, queue_of_list
from imagefleet.shared.process.backoff import backoff_s
from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.redis_client.write_errors import describe_failure
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup, tag_number
from imagefleet.worker.queues.claims import NO_LIMIT, Claims

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

_MIN_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0
"""A lane in which claims fail is asked again after pauses between half of the first and the
second."""
REQUEUE_S: Final = 1.0
"""All lanes together have so many seconds to take messages back. A worker that ends may have three
in all; a lane that is slower gets its messages back from the thread that asks it, or from another
worker once the lease has expired."""


@dataclass(kw_only=True)
class _Outage:
    """A lane is not asked before this time (monotonic), after so many failed claims in a row."""

    error: redis.RedisError | LeaseLost
    failures: int
    began_at: float
    ends_at: float


class LaneClaims:
    """The claims of a worker, by lane. Threads may share it; only one of them calls `claim`.

    Lanes are asked in a circle: a claim begins behind the lane that gave the last message. A lane
    that does not answer is left out for a while.
    """

    def __init__(
        self, parts: Sequence[Claims], namespaces: Sequence[str], fleet: str | None = None
    ) -> None:
        """
        Args:
            parts: the claims of each lane.
            namespaces: those of the lanes.
            fleet: the namespace with which the names of queues begin. None: that of the first lane.
        """
        self.parts: Final = tuple(parts)
        self.worker: Final = self.parts[0].worker
        self._fleet = namespaces[0] if fleet is None else fleet
        self._namespaces = tuple(namespaces)
        self._outages: dict[int, _Outage] = {}
        self._next = 0

    @classmethod
    def single(cls, claims: Claims) -> Self:
        """Return the claims of a fleet on one server."""
        return cls([claims], [""])

    def number_of(self, tag: str) -> int:
        """Return the number of the lane in which a message was claimed."""
        return int(tag_number(tag)) % len(self.parts)

    def of(self, tag: str) -> Claims:
        """Return the claims of the lane in which a message was claimed."""
        return self.parts[self.number_of(tag)]

    def holds(self, tag: str) -> bool:
        """Whether the message is neither acknowledged nor requeued yet."""
        return self.of(tag).holds(tag)

    def other_lanes_answer(self) -> bool:
        """Whether this worker has a lease in a lane beside the first."""
        return any(not part.lease.may_have_expired() for part in self.parts[1:])

    def may_end(self, tag: str) -> bool:
        """Whether a message is held that can still be acknowledged: its lane is not away."""
        return self.holds(tag) and not self.is_away(tag)

    def is_away(self, tag: str) -> bool:
        """Whether one of several lanes has not answered for the length of a lease. Once it does,
        others may get the messages that are held there, with a delivery counted."""
        return len(self.parts) > 1 and self.of(tag).lease.may_have_expired()

    def requeue(self, *tags: str, counted: bool = False) -> int:
        """Put messages back to the heads of their queues; see `Claims.requeue`. Those of a lane
        that does not answer follow when it does."""
        requeued = self.in_each_lane(
            {
                number: partial(part.requeue, *own, counted=counted)
                for number, part in enumerate(self.parts)
                if (own := [tag for tag in tags if self.number_of(tag) == number])
            },
            "its messages are requeued later",
        )
        return sum(requeued)

    def release_all(self) -> int:
        """Requeue every message and give up the leases. Return the number of messages.

        Those of a lane that does not answer are requeued by others once this lease has expired.
        """
        asks = {number: part.lease.release_all for number, part in enumerate(self.parts)}
        return sum(self.in_each_lane(asks, "the lease there was not released"))

    def in_each_lane(
        self, asks: Mapping[int, Callable[[], Answer]], otherwise: str
    ) -> list[Answer]:
        """Call the function of each lane at the same time. Return the answers that come within
        `REQUEUE_S`. The log says `otherwise` of the other lanes. If there is only one lane, it is
        waited for, and its error is raised."""
        return list(ask_at_once(asks, len(self.parts), REQUEUE_S, otherwise).values())

    def claim(
        self,
        groups: Sequence[QueueGroup],
        wanted_images: int,
        *,
        max_messages: int = NO_LIMIT,
        suspect_from: int = NO_LIMIT,
        ignored_tags: Collection[str] = (),
        **options: Any,
    ) -> list[Claimed]:
        """Claim messages of one group until they make `wanted_images`, or no lane has more.

        The first message decides the group. Priorities are strict within a lane. The arguments are
        those of `Claims.claim`.

        Raises:
            LeaseLost, redis.RedisError: no lane answers, and this is the error of one.
        """
        options |= {"suspect_from": suspect_from, "ignored_tags": ignored_tags}
        if len(self.parts) == 1:  # there is no other lane to go on with
            [part] = self.parts
            return part.claim(groups, wanted_images, max_messages=max_messages, **options)
        claimed: list[Claimed] = []
        first = self._next
        for step in range(len(self.parts)):
            number = (first + step) % len(self.parts)
            if self.is_paused(number):
                continue
            images = sum(message.images for message in claimed)
            if images >= wanted_images or len(claimed) >= max_messages:
                break
            found: list[Claimed] = []
            with self.pausing(number):
                found = self.parts[number].claim(
                    self._groups_of(number, groups, claimed),
                    wanted_images - images,
                    max_messages=max_messages - len(claimed),
                    holds_others=any(
                        tag not in ignored_tags and not self.is_away(tag)
                        for tag in self.held_tags()
                    ),
                    **options,
                )
                self._outages.pop(number, None)
            if found:
                claimed += found
                self._next = (number + 1) % len(self.parts)
            if any(message.deliveries >= suspect_from for message in found):
                break  # it runs alone
        if len(self._outages) == len(self.parts):
            raise max(self._outages.values(), key=lambda outage: outage.ends_at).error
        return claimed

    def is_paused(self, number: int) -> bool:
        """Return whether a lane is left out now: also until its lease was renewed since the last
        failure, because a try may take 10 s, in which the other lanes wait."""
        outage = self._outages.get(number)
        return outage is not None and (
            time.monotonic() < outage.ends_at
            or not self.parts[number].lease.was_renewed_since(outage.began_at)
        )

    @contextmanager
    def pausing(self, number: int) -> Iterator[None]:
        """Leave a lane out for a while if it does not answer inside the block, and raise nothing.
        The only lane is not left out: its error is raised."""
        try:
            yield
        except (redis.RedisError, LeaseLost) as failure:
            if len(self.parts) == 1:
                raise
            self._note_failure(number, failure)

    def _groups_of(
        self, number: int, groups: Sequence[QueueGroup], claimed: Sequence[Claimed]
    ) -> list[QueueGroup]:
        """Return the queues of one lane: those of the group of the first claimed message, if there
        is one."""
        own, here = self._fleet, self._namespaces[number]
        names = {queue: group.name for group in groups for queue in group.queues}
        wanted = {names.get(own + _base_queue(message.list_key)) for message in claimed[:1]}
        return [
            replace(group, queues=tuple(here + queue.removeprefix(own) for queue in group.queues))
            for group in groups
            if not claimed or group.name in wanted
        ]

    def _note_failure(self, number: int, failure: redis.RedisError | LeaseLost) -> None:
        outage = self._outages.get(number)
        failures = 0 if outage is None else outage.failures
        pause_s = backoff_s(failures, min_s=_MIN_PAUSE_S, max_s=_MAX_PAUSE_S)
        now = time.monotonic()
        self._outages[number] = _Outage(
            error=failure, failures=failures + 1, began_at=now, ends_at=now + pause_s
        )
        lost = "has lost the lease of this worker"
        what = lost if isinstance(failure, LeaseLost) else describe_failure(failure)
        log.warning("lane %d is left out for %.1f s or longer; it %s", number, pause_s, what)

    def held_tags(self) -> set[str]:
        """Return the tags of all messages that are neither acknowledged nor requeued yet."""
        return set[str]().union(*(part.held_tags() for part in self.parts))


def _base_queue(list_key: str) -> str:
    """Return the queue of a list behind its namespace, without priority, tenant and add-ons."""
    queue = queue_of_compile_key(queue_of_list(list_key))
    return queue[queue.index(".") :]
