"""The outbox: callbacks that are owed, in Redis, so that they outlive every process here.

    <namespace>:outbox            sorted set: id by the time it is due (Unix seconds, Redis's clock)
    <namespace>:outbox:messages   hash: id to `OutboxMessage` as JSON
    <namespace>:outbox:given-up   sorted set: id by the time we stopped trying; message still there
    <namespace>:outbox:gone:<url> exists while a receiver that answered 410 is left alone
    <namespace>:outbox:log:<job>  list: what came of the job's latest tries, newest first

A script that changes a job's state queues the callback for it in the same step with
`ZADD outbox <now> <id>` and `HSET outbox:messages <id> <JSON>`, and nothing else; see add.lua.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.redis_client.scripts import script
from imagefleet.shared.webhooks.messages import (
    CallbackEntry,
    CallbackState,
    DeliveryAttempt,
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

log = logging.getLogger(__name__)

NOBODY: Final[Mapping[str, int]] = MappingProxyType({})

_LOGGED: Final = 50
"""Tries a job; the schedule has twelve for each of its events."""
_GIVEN_UP_KEPT: Final = 10_000
_PLACES: Final = 8
"""Of a receiver, a worker."""
_LOOKED_AT: Final = 200
"""Due messages a claim looks at when receivers are crowded."""
_SLOW_STEP_BACK_S: Final = 5.0
_CROWDED_STEP_BACK_S: Final = 1.0
_WEEK_S: Final = 7 * 24 * 3600
_GONE_S: Final = _WEEK_S
"""How long a receiver that answered 410 is left alone."""


class Outbox:
    """One namespace's outbox. The client must decode responses. Safe to share between threads."""

    def __init__(self, client: "Redis", namespace: str, retention_s: int = _WEEK_S) -> None:
        """`retention_s`: how long the log of a job's tries is kept after the latest."""
        self._redis = client
        self._retention_s = retention_s
        self._due = f"{namespace}:outbox"
        self._messages = f"{namespace}:outbox:messages"
        self._given_up = f"{namespace}:outbox:given-up"
        self._gone = f"{namespace}:outbox:gone:"
        self._log = f"{namespace}:outbox:log:"
        self._add = script(client, __package__, "outbox_add")
        self._claim = script(client, __package__, "outbox_claim")
        self._postpone = script(client, __package__, "outbox_postpone")
        self._stop = script(client, __package__, "outbox_give_up")
        self._replay = script(client, __package__, "outbox_replay")

    def add(self, message: OutboxMessage, pipeline: "Pipeline | None" = None) -> None:
        """Owe `message`, due now; within `pipeline` if one is given."""
        self._add(
            keys=[self._due, self._messages],
            args=[message.id, message.dump()],
            client=pipeline,
        )

    def claim(
        self,
        limit: int,
        lease_s: float,
        *,
        busy: Mapping[str, int] = NOBODY,
        slow: Collection[str] = (),
    ) -> list[OutboxMessage]:
        """Take up to `limit` due messages, each for `lease_s`: then it comes due again, unless it
        was settled. A receiver has 8 places, one that is `slow` has one; `busy` are taken."""
        crowd: list[str | int] = []
        for receiver in {*busy, *slow}:
            places = 1 if receiver in slow else _PLACES
            crowd += [receiver, places - busy.get(receiver, 0), int(receiver in slow)]
        found = self._claim(
            keys=[self._due, self._messages],
            args=[
                *(limit, lease_s, _LOOKED_AT, _PLACES),
                *(_SLOW_STEP_BACK_S, _CROWDED_STEP_BACK_S),
                *crowd,
            ],
        )
        return list(self._parsed(dict(zip(found[::2], found[1::2], strict=True))))

    def done(self, message: OutboxMessage, outcome: DeliveryOutcome) -> None:
        """It was delivered: forget it."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._due, message.id)
            pipe.hdel(self._messages, message.id)
            self._note(pipe, message, outcome)
            pipe.execute()

    def retry(self, message: OutboxMessage, pause_s: float, outcome: DeliveryOutcome) -> None:
        """Try `message` (with its attempts counted up) again in `pause_s`."""
        with self._redis.pipeline(transaction=True) as pipe:
            self._postpone(
                keys=[self._due, self._messages],
                args=[message.id, message.dump(), pause_s],
                client=pipe,
            )
            self._note(pipe, message, outcome)
            pipe.execute()

    def give_up(self, message: OutboxMessage, outcome: DeliveryOutcome) -> None:
        """Stop trying. Kept among the latest 10,000 for `replay`."""
        with self._redis.pipeline(transaction=True) as pipe:
            self._bury(message.id, pipe)
            self._note(pipe, message, outcome)
            pipe.execute()

    def replay(self, message_id: str) -> None:
        """Start anew with a given-up message, and let its receiver be sent to again.

        Raises:
            UnknownJob: there is none of that id.
            MessageRejected: it was given up because it is none.
        """
        text: Any = self._redis.hget(self._messages, message_id)
        message = text and replace(OutboxMessage.parse(text), attempts=0)
        keys = [self._due, self._messages, self._given_up]
        if not message or not self._replay(keys=keys, args=[message_id, message.dump()]):
            raise UnknownJob(f"no given-up callback {message_id!r}: delivered, waiting, or dropped")
        self.enable(message.url)

    def disable(self, url: str) -> None:
        """Leave this receiver alone for a week."""
        self._redis.set(self._gone + url, "410", ex=_GONE_S)

    def enable(self, url: str) -> None:
        self._redis.delete(self._gone + url)

    def disabled(self, url: str) -> bool:
        return bool(self._redis.exists(self._gone + url))

    def waiting(self) -> int:
        """How many messages are owed."""
        count: Any = self._redis.zcard(self._due)
        return int(count)

    def tries(self, job_id: str) -> list[DeliveryAttempt]:
        """The latest of a job's callbacks, newest first."""
        lines = cast(list[str], self._redis.lrange(self._log + job_id, 0, -1))
        return [DeliveryAttempt.model_validate_json(line) for line in lines]

    def entries(self, *, failed: bool = False, limit: int = 100) -> list[CallbackEntry]:
        """What was given up, latest first, then what waits, the longest due first."""
        stopped: Any = self._redis.zrevrange(self._given_up, 0, limit - 1, withscores=True)
        due: Any = [] if failed else self._redis.zrange(self._due, 0, limit - 1, withscores=True)
        found = self._entries(stopped, CallbackState.GIVEN_UP) + self._entries(
            due, CallbackState.WAITING
        )
        return found[:limit]

    def entries_of(self, job_id: str) -> list[CallbackEntry]:
        """A job's callbacks, those among them that were delivered lately."""
        own = [key for key, _ in self._redis.hscan_iter(self._messages, match=f"{job_id}.*")]
        found = []
        for key, standing in (
            (self._given_up, CallbackState.GIVEN_UP),
            (self._due, CallbackState.WAITING),
        ):
            scores: Any = [(each, self._redis.zscore(key, each)) for each in own]
            found += self._entries([pair for pair in scores if pair[1] is not None], standing)
        return [entry for entry in found if entry.job_id == job_id] + [
            CallbackEntry(
                id=each.id,
                job_id=job_id,
                standing=CallbackState.DELIVERED,
                at=each.at,
                url=each.url,
                attempts=each.attempt,
                last=each,
            )
            for each in self.tries(job_id)
            if each.verdict is DeliveryVerdict.DELIVERED
        ]

    def _entries(
        self, scored: list[tuple[str, float]], standing: CallbackState
    ) -> list[CallbackEntry]:
        texts: Any = self._redis.hmget(self._messages, [key for key, _ in scored]) if scored else []
        found = []
        for (_, at), text in zip(scored, texts, strict=True):
            with suppress(MessageRejected):  # the courier puts rubbish aside and says so
                message = OutboxMessage.parse(text or "")
                tries = (each for each in self.tries(message.job_id) if each.id == message.id)
                last = next(tries, None)
                entry = CallbackEntry(
                    id=message.id,
                    job_id=message.job_id,
                    standing=standing,
                    at=at,
                    url=message.url,
                    attempts=message.attempts if last is None else last.attempt,
                    last=last,
                )
                found.append(entry)
        return found

    def _parsed(self, found: dict[str, str]) -> Iterator[OutboxMessage]:
        for message_id, text in found.items():
            try:
                yield OutboxMessage.parse(text)
            except MessageRejected as error:
                log.error("callback %s cannot be sent: %s", message_id, error)
                self._bury(message_id, None)

    def _bury(self, message_id: str, pipe: "Pipeline | None") -> None:
        self._stop(
            keys=[self._due, self._messages, self._given_up],
            args=[message_id, _GIVEN_UP_KEPT],
            client=pipe,
        )

    def _note(self, pipe: "Pipeline", message: OutboxMessage, outcome: DeliveryOutcome) -> None:
        line = DeliveryAttempt(
            id=message.id,
            url=message.url,
            attempt=message.attempts,
            verdict=outcome.verdict,
            status=outcome.status,
            reason=outcome.reason,
            ms=outcome.ms,
            at=round(time.time(), 3),
        )
        key = self._log + message.job_id
        pipe.lpush(key, line.model_dump_json())
        pipe.ltrim(key, 0, _LOGGED - 1)
        pipe.expire(key, self._retention_s)
