"""Answer a repeated request with the job that the first one made.

Clients repeat a request whose answer was lost: openai twice, within seconds, and without an
idempotency key (https://github.com/openai/openai-python). Each repetition would be another job.

- With the header `Idempotency-Key` the job's id is derived from it, so the job is the same for as
  long as its record is kept.
- With `x-stainless-retry-count`, which the clients of OpenAI send, 0 is a new job, and more is the
  latest job of the same key for the same body, until some minutes after its answer.
- Without both, the same body of the same key is the same job until the first request was answered,
  and for some seconds more, in which the answer may have been lost.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.producer.gateway.redis_keys import request_key
from imagefleet.producer.gateway.threads import Threads
from imagefleet.shared.jobs.model import new_job_id

_MAX_KEY_CHARACTERS: Final = 255
_UNANSWERED_S: Final = 900
"""Seconds for which a request is remembered that no gateway has answered, for example because the
gateway was killed. openai waits 600 s for an answer, and so may notice late that one was lost."""


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

    def __init__(self, connection: Connection, threads: Threads, answered_s: float) -> None:
        """
        Args:
            answered_s: seconds after an answer within which it may have been lost, if the client
                does not say which requests are repetitions.
        """
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
        tries = headers.get("x-stainless-retry-count")
        is_counted = tries is not None  # such requests are not mixed with those without a count
        digest = _digest(f"{who}{'counted' if is_counted else ''}\n".encode() + content)
        name = await self._threads.run(self._claim, digest, tries == "0")
        answered_s = _UNANSWERED_S if is_counted else self._answered_s
        return RequestJob(name=name, digest=digest, answered_s=answered_s)

    def _claim(self, digest: str, is_first: bool) -> str:
        key, name = self._key(digest), new_job_id()
        redis = self._connection.redis
        with self._connection.translate_errors():
            while not redis.set(key, name, nx=not is_first, ex=_UNANSWERED_S):
                if (earlier := redis.get(key)) is not None:  # else it has expired meanwhile
                    return str(earlier)
        return name

    async def answered(self, job: RequestJob) -> None:
        """Note that the answer of a request was sent."""
        if job.digest:
            await self._threads.run(self._expire, job)

    def _expire(self, job: RequestJob) -> None:
        milliseconds = max(1, int(job.answered_s * 1000))
        with self._connection.translate_errors():
            self._connection.redis.pexpire(self._key(job.digest), milliseconds)

    def _key(self, digest: str) -> str:
        return request_key(self._connection.settings.namespace, digest)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
