"""Dead letters: messages the fleet gave up, kept where an operator can read and redrive them.

    <namespace>:dead           sorted set: id by the time it was buried (Unix seconds)
    <namespace>:dead:letters   hash: id to `DeadLetter` as JSON

Three kinds: what nobody can read, what took its workers down too often, and what failed in their
hands, after its retries. What was refused at the door is not here: it would be refused again.
"""

import base64
import hashlib
import json
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs.model import JOB_ID, Model, State
from imagefleet.shared.redis_client.scripts import script

if TYPE_CHECKING:
    from redis import Redis

_KEPT: Final = 10_000


class DeadLetter(Model):
    """One message nobody works on any more."""

    id: str
    """Of the message: the same message buried again is the same letter."""
    job_id: str | None
    """None if the message tells none."""
    code: str
    """Of the error; see shared.errors."""
    reason: str
    at: float
    """Unix seconds"""
    deliveries: int
    """Workers, or attempts, it had."""
    list_key: str
    message: str

    @property
    def arguments(self) -> object:
        """What the task was called with, a job's request for one; None if that cannot be read."""
        with suppress(Exception):  # it is dead because it can be anything
            envelope = json.loads(self.message)
            body = envelope["body"]
            if envelope["properties"].get("body_encoding") == "base64":
                body = base64.b64decode(body)
            return json.loads(body)[1]
        return None


class DeadLetters:
    """The dead letters of one namespace. Safe to share between threads."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self._keys = [f"{namespace}:dead", f"{namespace}:dead:letters"]
        self._bury = script(client, __package__, "dead_letter_add")
        self._redrive = script(client, __package__, "dead_letter_redrive")

    def add(
        self, list_key: str, message: str, *, code: str, reason: str, deliveries: int
    ) -> DeadLetter:
        """Keep `message`, and why it is dead. The oldest of 10,000 makes room."""
        letter = DeadLetter(
            id=hashlib.sha256(f"{list_key}\0{message}".encode()).hexdigest()[:12],
            job_id=_job_id(message),
            code=code,
            reason=reason,
            at=time.time(),
            deliveries=deliveries,
            list_key=list_key,
            message=message,
        )
        self._bury(keys=self._keys, args=[letter.id, letter.model_dump_json(), _KEPT])
        return letter

    def read(self, limit: int = _KEPT) -> list[DeadLetter]:
        """The latest first."""
        ids = cast(list[str], self._redis.zrevrange(self._keys[0], 0, limit - 1))
        texts = cast(list[str | None], self._redis.hmget(self._keys[1], ids)) if ids else []
        return [DeadLetter.model_validate_json(text) for text in texts if text is not None]

    def find(self, names: Iterable[str]) -> list[DeadLetter]:
        """The letters of these ids, or of the jobs of these ids. Raises UnknownJob."""
        known: dict[str, list[DeadLetter]] = {}
        for letter in self.read():
            for name in {letter.id, letter.job_id} - {None}:
                known.setdefault(cast(str, name), []).append(letter)
        found: dict[str, DeadLetter] = {}
        for name in names:
            if name not in known:
                raise UnknownJob(f"no dead letter {name!r}, neither by its id nor by its job's")
            found |= {letter.id: letter for letter in known[name]}
        return list(found.values())

    def redrive(self, letter: DeadLetter) -> State:
        """Send it through the fleet once more, with fresh counts: a failed job is queued again.

        Returns the state its job is in now. A job that did not fail stays as it is, and so does its
        letter. Raises UnknownJob if somebody else was faster.
        """
        state = self._redrive(
            keys=[
                *self._keys,
                f"{self._namespace}:job:{letter.job_id or ''}",
                f"{self._namespace}:deliveries",
                letter.list_key,
            ],
            args=[letter.id, letter.message],
        )
        if not state:
            raise UnknownJob(f"no dead letter {letter.id!r} any more")
        return State(cast(str, state))

    def drop(self, letter: DeadLetter) -> None:
        """Forget it. Its job's record stays as it is."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys[0], letter.id)
            pipe.hdel(self._keys[1], letter.id)
            pipe.execute()


def _job_id(message: str) -> str | None:
    with suppress(Exception):  # it is dead because it can be anything
        job_id = json.loads(message)["headers"]["id"]
        return job_id if JOB_ID.fullmatch(job_id) else None
    return None
