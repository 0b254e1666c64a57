"""Read sorted sets whose scores are times in microseconds, from a place on, in either direction.

The jobs of a tenant are such a set, and those that it has starred. Each time names one place.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, Self

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.problems import wrong_field
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


def read_timeline(
    connection: Connection, key: str, cursor: Cursor | None, size: int, span: Span = EVER
) -> list[tuple[str, int]]:
    """Return members with their times: from the cursor on, in its direction, at most `size`.

    Without a cursor they are the newest, in the direction of older ones. Raises BrokerUnavailable.
    """
    oldest, newest = span.oldest, span.newest
    if cursor is not None and cursor.older:
        newest = min(newest, cursor.at - 1)
    elif cursor is not None:
        oldest = max(oldest, cursor.at + 1)
    more: dict[str, Any] = {"start": 0, "num": size, "withscores": True}

    def read(pipe: Any) -> None:
        if cursor is None or cursor.older:
            pipe.zrevrangebyscore(key, newest, oldest, **more)
        else:
            pipe.zrangebyscore(key, oldest, newest, **more)

    with connection.translate_errors():
        found = read_key(connection.redis, read) or []
    return [(name, int(at)) for name, at in found]
