"""Answer a repeated request with the job that the first one made.

Clients repeat a request whose answer was lost: openai twice, within seconds, and without an
idempotency key (https://github.com/openai/openai-python). Each repetition would be another job.

- With the header `Idempotency-Key` the job's id is derived from it, so the job is the same for as
  long as its record is kept.
- With `x-stainless-retry-count`, which the clients of OpenAI send, 0 is a new job, and more is the
  latest job of the same key for the same body, until some minutes after its answer. If the try
  before was refused without a job, because of a rate for example, it is a new job.
- Without both, the same body of the same key is the same job until the first request was answered,
  and for some seconds more, in which the answer may have been lost.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.producer.gateway.redis_keys import refused_try_key, request_key
from imagefleet.producer.gateway.threads import Threads
from imagefleet.shared.errors import BrokerUnavailable

if TYPE_CHECKING:
    from redis import Redis

_MAX_KEY_CHARACTERS: Final = 255
_UNANSWERED_S: Final = 900
"""Seconds for which a request is remembered that no gateway has answered, for example because the
gateway was killed. openai waits 600 s for an answer, and so may notice late that one was lost."""
COUNT: Final = "x-stainless-retry-count"
_REFUSED_S: Final = 120
"""Seconds in which a refused try is repeated: openai waits for 60 s at most."""
_MAX_UNWRITTEN: Final = 10_000
_OF_CALLERS: Final = ("authorization", "x-api-key")
"""Headers that tell callers apart before anybody has read their keys."""


@dataclass(frozen=True, kw_only=True)
class RequestJob:
    """One request made this job."""

    name: str
    """The id, as the caller knows it."""
    digest: str
    """The body's; '' if an `Idempotency-Key` names the job."""
    answered_s: float = 0.0
    """Seconds after its answer for which the request is remembered by its digest."""


class Repeats:
    """This class remembers which job each request of the last minutes made, at whichever
    gateway of the fleet."""

    def __init__(
        self, connection: Connection, threads: Threads, answered_s: float, user_header: str = ""
    ) -> None:
        """
        Args:
            answered_s: seconds after an answer within which it may have been lost, if the client
                does not say which requests are repetitions.
            user_header: names the user if a proxy does; '' if none does.
        """
        self._of_callers = [*_OF_CALLERS, *filter(None, [user_header])]
        self._unwritten: dict[str, float] = {}
        """Refused tries that Redis did not take, with the time of each."""
        self._connection = connection
        self._threads = threads
        self._answered_s = answered_s

    async def job_of(
        self, caller: Caller, path: str, content: bytes, headers: Mapping[str, str]
    ) -> RequestJob:
        """Return the job of a request, which is submitted already if the request is repeated.

        Args:
            content: what is equal for equal requests. An `Idempotency-Key` stands for it.

        Raises Problem for a wrong header.
        """
        who = f"{caller.key_id or ''}\n{caller.tenant or ''}\n{path}\n"
        if (key := headers.get("idempotency-key")) is not None:
            if not 1 <= len(key) <= _MAX_KEY_CHARACTERS:
                limit = f"must have 1 to {_MAX_KEY_CHARACTERS} characters"
                raise wrong_field("Idempotency-Key", key, limit)
            return RequestJob(name=_digest(f"{who}key\n{key}".encode())[:32], digest="")
        tries = headers.get(COUNT)
        is_counted = tries is not None  # such requests are not mixed with those without a count
        digest = _digest(f"{who}{'counted' if is_counted else ''}\n".encode() + content)
        refused = self._digest_of_try(path, headers) if is_counted and tries != "0" else ""
        new_id = self._connection.records.id_source(partial(stored_id, caller.tenant))
        name = await self._threads.run(self._claim, digest, new_id(), tries == "0", refused)
        answered_s = _UNANSWERED_S if is_counted else self._answered_s
        return RequestJob(name=name, digest=digest, answered_s=answered_s)

    async def refused(self, path: str, headers: Mapping[str, str], *, is_redis_away: bool) -> None:
        """Note that a try was refused, whose body may not have been read.

        Args:
            is_redis_away: why it was refused. Redis is not asked once more then.
        """
        digest = self._digest_of_try(path, headers)
        if not is_redis_away:
            with suppress(BrokerUnavailable):
                await self._threads.run(self._note_refused, digest)
                return
        if len(self._unwritten) >= _MAX_UNWRITTEN:
            self._unwritten.clear()
        self._unwritten[digest] = time.monotonic()  # the repetition may come to this gateway

    def _note_refused(self, digest: str) -> None:
        redis, key = self._place(digest, refused_try_key)
        with self._connection.translate_errors():
            redis.set(key, 1, ex=_REFUSED_S)

    def _was_refused(self, digest: str) -> bool:
        """Return whether the try before was refused, and forget it."""
        unwritten = self._unwritten.pop(digest, float("-inf")) > time.monotonic() - _REFUSED_S
        redis, key = self._place(digest, refused_try_key)
        return bool(redis.delete(key)) or unwritten

    def _claim(self, digest: str, name: str, is_first: bool, refused: str) -> str:
        """Return the job of a request.

        Args:
            name: names the job if the request is new.
            refused: digest of the try, if it is a repeated one that may have been refused.
        """
        redis, key = self._place(digest, request_key)
        with self._connection.translate_errors():
            is_first = is_first or (refused != "" and self._was_refused(refused))
            while not redis.set(key, name, nx=not is_first, ex=_UNANSWERED_S):
                if (earlier := redis.get(key)) is not None:  # else it has expired meanwhile
                    return str(earlier)
        return name

    async def answered(self, job: RequestJob) -> None:
        """Note that the answer of a request was sent, if Redis can: nobody is refused for it."""
        if job.digest:
            with suppress(BrokerUnavailable):
                await self._threads.run(self._expire, job)

    def _expire(self, job: RequestJob) -> None:
        milliseconds = max(1, int(job.answered_s * 1000))
        redis, key = self._place(job.digest, request_key)
        with self._connection.translate_errors():
            redis.pexpire(key, milliseconds)

    def _digest_of_try(self, path: str, headers: Mapping[str, str]) -> str:
        """Return what the tries of one request have in common, beside their body."""
        names = (*self._of_callers, "content-length")
        texts = [path, *(headers.get(name, "") for name in names)]
        return _digest("\n".join(texts).encode())

    def _place(self, digest: str, key: Callable[[str, str], str]) -> "tuple[Redis, str]":
        """Return the client of the lane that a digest tells, and a key in it."""
        lane = self._connection.lanes.of(digest)
        return lane.client, key(lane.namespace, digest)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
