"""Read lists of jobs by time, from a place on and in either direction, with fields of records.

The jobs of a tenant are such a list, and those that it has starred. Each time names one place.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key

MICROSECONDS: Final = 1_000_000
_LAST: Final = 10**16
"""This time in microseconds is behind all others: in the year 2286."""
_CURSOR: Final = re.compile(r"(before|after)-([0-9]{1,16})")


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """A cursor names a place in the list, and the direction in which a page goes on from it."""

    at: int
    """It is a time in microseconds, which one job has or had."""
    older: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` has written. Raises Problem."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise wrong_field("cursor", text, "must be that of an earlier page")
        return cls(at=int(found[2]), older=found[1] == "before")

    def __str__(self) -> str:
        return f"{'before' if self.older else 'after'}-{self.at}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of time in microseconds, with both ends."""

    oldest: int = 0
    newest: int = _LAST


EVER: Final = Span()


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A list of jobs of one tenant."""

    lane: Lane
    """It holds the list. The records of the jobs are in all lanes."""
    key: str
    """It is a sorted set of ids and microseconds."""
    prefix: str
    """It stands before an id of the list in the stored id of a job."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A job in a list has this place, and its record these values."""

    job_id: str
    """It is the stored id."""
    at: int
    """It is a time in microseconds."""
    values: tuple[str | None, ...]
    """They are those of the fields that were asked for. None: the record does not have it. Empty:
    the lane of the job does not answer."""


class TimelineReader:
    """This class reads lists of jobs. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._script = load_script(connection.redis, __package__, "read_jobs")

    def read(
        self,
        timeline: Timeline,
        cursor: Cursor | None,
        size: int,
        fields: Sequence[str],
        span: Span = EVER,
    ) -> list[Entry]:
        """Return at most `size` jobs: from the cursor on, in its direction.

        Without a cursor they are the newest, in the direction of older ones. Raises
        BrokerUnavailable.
        """
        oldest, newest, older = span.oldest, span.newest, cursor is None or cursor.older
        if cursor is not None and older:
            newest = min(newest, cursor.at - 1)
        elif cursor is not None:
            oldest = max(oldest, cursor.at + 1)
        if len(self._connection.lanes) > 1:
            return self._read_lanes(timeline, oldest, newest, older, size, fields)
        direction = "older" if older else "newer"
        records = job_key(self._connection.namespace, timeline.prefix)
        args: list[str | int] = [oldest, newest, direction, size, records, len(fields), *fields]
        with self._connection.translate_errors():
            answer = json.loads(cast(str, self._script(keys=[timeline.key], args=args)))
        width = 2 + len(fields)
        return [
            Entry(
                job_id=timeline.prefix + answer[at],
                at=int(answer[at + 1]),
                values=tuple(each or None for each in answer[at + 2 : at + width]),
            )
            for at in range(0, len(answer), width)
        ]

    def _read_lanes(
        self,
        timeline: Timeline,
        oldest: int,
        newest: int,
        older: bool,
        size: int,
        fields: Sequence[str],
    ) -> list[Entry]:
        """Read a part of the list, then the records of its jobs in their lanes."""

        def read(pipe: Any) -> object:
            part = {"start": 0, "num": size, "withscores": True}
            if older:
                return pipe.zrevrangebyscore(timeline.key, newest, oldest, **part)
            return pipe.zrangebyscore(timeline.key, oldest, newest, **part)

        with self._connection.translate_errors():
            listed = read_key(timeline.lane.client, read) or []
            job_ids = [timeline.prefix + name for name, _ in listed]
            values = self._connection.records.read_fields(job_ids, fields)
        return [
            Entry(
                job_id=job_id,
                at=int(at),
                values=tuple(each or None for each in values.get(job_id, ())),
            )
            for job_id, (_, at) in zip(job_ids, listed, strict=True)
        ]
