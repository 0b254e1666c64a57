"""Dead letters are messages that the fleet gave up. An operator reads, redrives or drops them.

    <namespace>:dead           sorted set: id by the time it was added (Unix seconds)
    <namespace>:dead:letters   hash: id to `DeadLetter` as JSON
    <namespace>:dead:totals    hash: about how many bytes they have, and how many were dropped

A message becomes a dead letter if it cannot be read, if its workers died too often, if its job
failed after all retries, or if it has the id of another job. A message whose job was refused at
admission, or was not started within its `ttl`, does not.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from pydantic import ValidationError

from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.jobs.celery_message import arguments_or_none
from imagefleet.shared.jobs.message_origin import MessageOrigin
from imagefleet.shared.jobs.model import (
    JOB_ID,
    MAX_ERROR_CHARACTERS,
    Count,
    Model,
    State,
    Time,
)
from imagefleet.shared.jobs.redis_keys import (
    dead_letter_contents_key,
    dead_letter_totals_key,
    dead_letters_key,
    deliveries_key,
    job_key,
)
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key
from imagefleet.shared.text.printable import printable

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

_OTHER_REQUEST: Final = "other"
"""What `dead_letter_redrive.lua` returns if the request of the job has changed meanwhile."""
_MAX_LETTERS: Final = 10_000
MAX_LETTER_BYTES: Final = 256_000_000
"""By default all dead letters together have at most this many bytes."""
MAX_MESSAGE_BYTES: Final = 160_000
"""Length of the longest message that is kept whole. The message of a job with the longest prompts
and addresses has 138,000 bytes."""
_CUT: Final = re.compile(r"… \(cut from \d+ bytes\)\Z")
"""The end of a message that was longer. It is part of the text, because a worker of release 0.1.0
knows no field for it."""
_WORKER: Final = re.compile(r" \[worker (\S+)\]\Z")
"""A stored reason ends so, for the same cause."""


class DeadLetter(Model):
    """A dead letter is one message that the fleet gave up, with the reason."""

    id: str
    """Derived from the message: the same message added again is the same letter."""
    job_id: str | None
    """None if the message names no job."""
    code: str
    """It is the code of an error in `shared.errors`."""
    reason: str
    at: Time
    """It is a time in Unix seconds."""
    deliveries: Count
    """Workers, or attempts, that the message had."""
    list_key: str
    message: str
    worker: str | None = None
    """It is the worker that gave the message up; None: a worker of release 0.1.0."""

    def dump(self) -> str:
        """Return what is stored in Redis."""
        suffix = f" [worker {self.worker}]" if self.worker else ""
        stored = self.model_copy(update={"reason": self.reason + suffix})
        return stored.model_dump_json(exclude={"worker"})

    @property
    def is_cut(self) -> bool:
        """Whether the message was too long to be kept whole, so that it cannot be redriven."""
        return _CUT.search(self.message) is not None

    @property
    def arguments(self) -> object:
        """The keyword arguments of the Celery task (for a job its packed request); None if they
        cannot be read."""
        return arguments_or_none(self.message)


class DeadLetters:
    """This class keeps the dead letters of one namespace. Threads may share it."""

    def __init__(
        self,
        client: "Redis",
        namespace: str,
        max_bytes: int = MAX_LETTER_BYTES,
        *,
        lanes: int = 1,
    ) -> None:
        """
        Args:
            max_bytes: bytes of all letters of the fleet together, as JSON.
            lanes: lanes of the fleet. This one keeps its part of what all may keep.
        """
        self._redis = client
        self._namespace = namespace
        self._max_letters = _MAX_LETTERS // lanes
        self._max_bytes = max_bytes // lanes
        self._totals = dead_letter_totals_key(namespace)
        self._keys = [dead_letters_key(namespace), dead_letter_contents_key(namespace)]
        self._add = load_script(client, __package__, "dead_letter_add")
        self._redrive = load_script(client, __package__, "dead_letter_redrive")

    def add(
        self,
        list_key: str,
        message: str,
        *,
        code: str,
        reason: str,
        deliveries: int,
        worker: str | None = None,
    ) -> DeadLetter:
        """Keep `message` with the reason why it was given up, and the worker that did so.

        Beyond 10,000 letters of the fleet, or `max_bytes`, the oldest are dropped. A long reason or
        message is cut, and what is not valid UTF-8 in them is escaped.
        """
        letter = DeadLetter(
            id=hashlib.sha256(_utf8(f"{list_key}\0{message}")).hexdigest()[:12],
            job_id=_job_id(message),
            code=code,
            reason=printable(reason, MAX_ERROR_CHARACTERS),
            at=time.time(),
            deliveries=deliveries,
            list_key=_utf8(list_key).decode(),
            message=_cut_message(message),
            worker=worker,
        )
        dropped = self._add(
            keys=[*self._keys, self._totals],
            args=[letter.id, letter.dump(), self._max_letters, self._max_bytes],
        )
        if dropped:
            log.warning("too many dead letters, or too large ones; dropped the oldest: %d", dropped)
        return letter

    def read(self, limit: int = _MAX_LETTERS) -> list[DeadLetter]:
        """Return up to `limit` letters, the latest first."""
        order, contents = self._keys
        ids = read_key(self._redis, lambda pipe: pipe.zrevrange(order, 0, limit - 1))
        if not ids:
            return []
        texts = read_key(self._redis, lambda pipe: pipe.hmget(contents, ids)) or ()
        return [
            letter for id, text in zip(ids, texts, strict=False) if (letter := _parse(id, text))
        ]

    def times(self) -> list[tuple[str, float]]:
        """Return the id of each letter and when it was added, the latest first."""
        times: list[tuple[str, float]] | None = read_key(
            self._redis, lambda pipe: pipe.zrevrange(self._keys[0], 0, -1, withscores=True)
        )
        return times or []

    def find(self, letter_id: str) -> DeadLetter | None:
        """Return the letter with this id; None if there is none, or it is damaged."""
        text = read_key(self._redis, lambda pipe: pipe.hget(self._keys[1], letter_id))
        return _parse(letter_id, text)

    def redrive(self, letter: DeadLetter) -> State:
        """Send a letter through the fleet once more, with new counts. Return its job's new state.

        A failed job, or one whose record expired, is queued again. Any other
        job stays as it is, and so does its letter.

        Raises:
            UnknownJob: the letter does not exist any more.
            MessageRejected: the message was too long to be kept whole, or its id is that of another
                job now.
        """
        if letter.is_cut:
            raise MessageRejected(
                f"the message of dead letter {letter.id!r} was too long and was cut; "
                "submit its job again"
            )
        record = job_key(self._namespace, letter.job_id or "")
        stored = read_key(self._redis, lambda pipe: pipe.hget(record, "request")) or ""
        origin = MessageOrigin.parse(letter.message)
        if stored and origin is not None and not origin.matches(stored):
            raise _foreign_letter(letter)
        state = self._redrive(
            keys=[*self._keys, record, deliveries_key(self._namespace), letter.list_key],
            args=[letter.id, letter.message, stored],
        )
        if state == _OTHER_REQUEST:
            raise _foreign_letter(letter)
        if not state:
            raise UnknownJob(f"no dead letter {letter.id!r} any more")
        return State(cast(str, state))

    def drop(self, letter: DeadLetter) -> None:
        """Delete a letter. Its job's record stays as it is."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys[0], letter.id)
            pipe.hdel(self._keys[1], letter.id)
            pipe.execute()


def letters_of(
    letters: Iterable[DeadLetter], names: Iterable[str]
) -> list[DeadLetter | UnknownJob]:
    """Return those of `letters` with these ids or job ids, each once, and an error for each name
    that no letter has."""
    by_name: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        for name in {letter.id, letter.job_id} - {None}:
            by_name.setdefault(cast(str, name), []).append(letter)
    found: dict[str, DeadLetter | UnknownJob] = {}
    for name in names:
        if name in by_name:
            found |= {letter.id: letter for letter in by_name[name]}
        else:
            found[name] = UnknownJob(f"no dead letter has the id or the job id {name!r}")
    return list(found.values())


def _foreign_letter(letter: DeadLetter) -> MessageRejected:
    return MessageRejected(
        f"dead letter {letter.id!r} is not redriven: the job {letter.job_id!r} has other "
        "parameters now, because its first one was deleted, or plain Celery sent this message"
    )


def _parse(letter_id: str, text: str | None) -> DeadLetter | None:
    """Return a letter; None if it is not there any more, or damaged."""
    if text is None:
        return None
    try:
        letter = DeadLetter.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        log.warning(
            "dead letter %s cannot be read: %s", printable(letter_id, 80), error.errors()[0]["msg"]
        )
        return None
    if named := _WORKER.search(letter.reason):
        update = {"reason": letter.reason[: named.start()], "worker": named[1]}
        return letter.model_copy(update=update)
    return letter


def _cut_message(message: str) -> str:
    data = _utf8(message)
    if len(data) <= MAX_MESSAGE_BYTES:
        return data.decode()
    return f"{data[:MAX_MESSAGE_BYTES].decode(errors='ignore')}… (cut from {len(data)} bytes)"


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _job_id(message: str) -> str | None:
    with suppress(Exception):  # a dead letter may hold anything
        job_id = json.loads(message)["headers"]["id"]
        return job_id if JOB_ID.fullmatch(job_id) else None
    return None
