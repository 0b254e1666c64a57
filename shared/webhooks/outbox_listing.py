"""Read the outbox as an operator sees it: pending and given-up callbacks, and delivery attempts.

This module changes nothing in Redis.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.redis_keys import (
    outbox_given_up_key,
    outbox_key,
    outbox_log_key,
    outbox_messages_key,
)
from imagefleet.shared.webhooks.outbox_message import (
    CallbackEntry,
    CallbackState,
    DeliveryAttempt,
    DeliveryVerdict,
    OutboxMessage,
)

if TYPE_CHECKING:
    from redis import Redis


class OutboxListing:
    """The callbacks of one namespace, to read. `Outbox` adds what changes them."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self._due = outbox_key(namespace)
        self._messages = outbox_messages_key(namespace)
        self._given_up = outbox_given_up_key(namespace)

    def count_waiting(self) -> int:
        """Return the number of pending messages."""
        count: Any = self._redis.zcard(self._due)
        return int(count)

    def attempts_of(self, job_id: str) -> list[DeliveryAttempt]:
        """Return the latest delivery attempts of a job's callbacks, newest first."""
        key = outbox_log_key(self._namespace, job_id)
        lines = cast(list[str], self._redis.lrange(key, 0, -1))
        return [DeliveryAttempt.model_validate_json(line) for line in lines]

    def entries(self, *, failed: bool = False, limit: int = 100) -> list[CallbackEntry]:
        """Return the given-up callbacks, latest first, then the waiting ones, longest due first."""
        given_up: Any = self._redis.zrevrange(self._given_up, 0, limit - 1, withscores=True)
        due: Any = [] if failed else self._redis.zrange(self._due, 0, limit - 1, withscores=True)
        entries = self._entries(given_up, CallbackState.GIVEN_UP)
        return [*entries, *self._entries(due, CallbackState.WAITING)][:limit]

    def entries_of(self, job_id: str) -> list[CallbackEntry]:
        """Return a job's callbacks: given up, waiting, and delivered as far as its log goes."""
        own = [key for key, _ in self._redis.hscan_iter(self._messages, match=f"{job_id}.*")]
        entries: list[CallbackEntry] = []
        for key, state in (
            (self._given_up, CallbackState.GIVEN_UP),
            (self._due, CallbackState.WAITING),
        ):
            scores: Any = [(each, self._redis.zscore(key, each)) for each in own]
            entries += self._entries([pair for pair in scores if pair[1] is not None], state)
        return [entry for entry in entries if entry.job_id == job_id] + [
            CallbackEntry(
                id=each.id,
                job_id=job_id,
                standing=CallbackState.DELIVERED,
                at=each.at,
                url=each.url,
                attempts=each.attempt,
                last=each,
            )
            for each in self.attempts_of(job_id)
            if each.verdict is DeliveryVerdict.DELIVERED
        ]

    def _entries(
        self, scored: list[tuple[str, float]], state: CallbackState
    ) -> list[CallbackEntry]:
        texts: Any = self._redis.hmget(self._messages, [key for key, _ in scored]) if scored else []
        entries = []
        for (_, at), text in zip(scored, texts, strict=True):
            with suppress(MessageRejected):  # the delivery loop gives it up and logs that
                message = OutboxMessage.parse(text or "")
                attempts = self.attempts_of(message.job_id)
                last = next((each for each in attempts if each.id == message.id), None)
                entry = CallbackEntry(
                    id=message.id,
                    job_id=message.job_id,
                    standing=state,
                    at=at,
                    url=message.url,
                    attempts=message.attempts if last is None else last.attempt,
                    last=last,
                )
                entries.append(entry)
        return entries
