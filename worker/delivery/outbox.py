"""The outbox: callbacks that are owed, in Redis, so that they outlive every process here.

    <namespace>:outbox            sorted set: id by the time it is due (Unix seconds, Redis's clock)
    <namespace>:outbox:messages   hash: id to `Message` as JSON
    <namespace>:outbox:given-up   sorted set: id by the time we stopped trying; message still there
    <namespace>:outbox:gone:<url> exists while a receiver that answered 410 is left alone
    <namespace>:outbox:log        list: what came of the latest tries, newest first

A script that changes a job's state queues the callback for it in the same step with
`ZADD outbox <now> <id>` and `HSET outbox:messages <id> <JSON>`, and nothing else; see add.lua.
"""

import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from shared.errors import MessageRejected, UnknownJob
from worker.delivery.messages import Message
from worker.delivery.sender import Outcome

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline
    from redis.commands.core import Script

log = logging.getLogger(__name__)

NOBODY: Final[Mapping[str, int]] = MappingProxyType({})

_LOGGED: Final = 1_000
_GIVEN_UP_KEPT: Final = 10_000
_PLACES: Final = 8
"""Of a receiver, a worker."""
_LOOKED_AT: Final = 200
"""Due messages a claim looks at when receivers are crowded."""
_STEP_BACK_S: Final = 5.0
_GONE_S: Final = 7 * 24 * 3600
"""How long a receiver that answered 410 is left alone."""


class Outbox:
    """One namespace's outbox. The client must decode responses. Safe to share between threads."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._due = f"{namespace}:outbox"
        self._messages = f"{namespace}:outbox:messages"
        self._given_up = f"{namespace}:outbox:given-up"
        self._gone = f"{namespace}:outbox:gone:"
        self._log = f"{namespace}:outbox:log"
        self._add = _script(client, "add")
        self._claim = _script(client, "claim")
        self._postpone = _script(client, "postpone")
        self._stop = _script(client, "give_up")
        self._replay = _script(client, "replay")

    def add(self, message: Message, pipeline: "Pipeline | None" = None) -> None:
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
    ) -> list[Message]:
        """Take up to `limit` due messages, each for `lease_s`: then it comes due again, unless it
        was settled. A receiver has 8 places, one that is `slow` has one; `busy` are taken."""
        crowd: list[str | int] = []
        for receiver in {*busy, *slow}:
            places = 1 if receiver in slow else _PLACES
            crowd += [receiver, places - busy.get(receiver, 0), int(receiver in slow)]
        found = self._claim(
            keys=[self._due, self._messages],
            args=[limit, lease_s, _LOOKED_AT, _PLACES, _STEP_BACK_S, *crowd],
        )
        return list(self._parsed(dict(zip(found[::2], found[1::2], strict=True))))

    def done(self, message: Message, outcome: Outcome) -> None:
        """It was delivered: forget it."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._due, message.id)
            pipe.hdel(self._messages, message.id)
            self._note(pipe, message, outcome)
            pipe.execute()

    def retry(self, message: Message, pause_s: float, outcome: Outcome) -> None:
        """Try `message` (with its attempts counted up) again in `pause_s`."""
        with self._redis.pipeline(transaction=True) as pipe:
            self._postpone(
                keys=[self._due, self._messages],
                args=[message.id, message.dump(), pause_s],
                client=pipe,
            )
            self._note(pipe, message, outcome)
            pipe.execute()

    def give_up(self, message: Message, outcome: Outcome) -> None:
        """Stop trying. Kept among the latest 10,000 for `replay`."""
        with self._redis.pipeline(transaction=True) as pipe:
            self._bury(message.id, pipe)
            self._note(pipe, message, outcome)
            pipe.execute()

    def given_up(self, limit: int = 100) -> list[Message]:
        """The messages that were given up, latest first."""
        ids: Any = self._redis.zrevrange(self._given_up, 0, limit - 1)
        texts: Any = self._redis.hmget(self._messages, ids) if ids else []
        return [Message.parse(text) for text in texts if text is not None]

    def replay(self, message_id: str) -> None:
        """Start anew with a given-up message. Raises UnknownJob if there is none of that id."""
        text: Any = self._redis.hget(self._messages, message_id)
        fresh = text and replace(Message.parse(text), attempts=0).dump()
        keys = [self._due, self._messages, self._given_up]
        if not fresh or not self._replay(keys=keys, args=[message_id, fresh]):
            raise UnknownJob(f"no given-up callback {message_id!r}: delivered, waiting, or dropped")

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

    def tries(self, limit: int = 100) -> list[dict[str, Any]]:
        """The latest tries: id, job_id, url, attempt, verdict, status, reason, at (Unix time)."""
        entries: Any = self._redis.lrange(self._log, 0, limit - 1)
        return [json.loads(entry) for entry in entries]

    def _parsed(self, found: dict[str, str]) -> Iterator[Message]:
        for message_id, text in found.items():
            try:
                yield Message.parse(text)
            except MessageRejected as error:
                log.error("callback %s cannot be sent: %s", message_id, error)
                self._bury(message_id, None)

    def _bury(self, message_id: str, pipe: "Pipeline | None") -> None:
        self._stop(
            keys=[self._due, self._messages, self._given_up],
            args=[message_id, _GIVEN_UP_KEPT],
            client=pipe,
        )

    def _note(self, pipe: "Pipeline", message: Message, outcome: Outcome) -> None:
        entry = {
            "id": message.id,
            "job_id": message.job_id,
            "url": message.url,
            "attempt": message.attempts,
            "verdict": outcome.verdict.value,
            "status": outcome.status,
            "reason": outcome.reason,
            "at": round(time.time(), 3),
        }
        pipe.lpush(self._log, json.dumps(entry))
        pipe.ltrim(self._log, 0, _LOGGED - 1)


def _script(client: "Redis", name: str) -> "Script":
    return client.register_script(files(__package__).joinpath(f"{name}.lua").read_text())
