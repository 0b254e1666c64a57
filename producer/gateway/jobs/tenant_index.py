"""List the jobs of each tenant that came as predictions, newest first, page by page.

The records of jobs have no index. This one costs each such job one call of a script, and a page one
range of a sorted set, however many jobs there are. A job is indexed before it is submitted, so none
that was accepted is missing.
"""

import re
import time
from dataclasses import dataclass
from typing import Any, Final, Self

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.jobs.job_ids import tenant_digest
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.producer.gateway.redis_keys import tenant_jobs_key
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key

_MAX_JOBS: Final = 100_000
"""Jobs of a tenant that are listed."""
_UNFINISHED_S: Final = 30 * 24 * 3_600
"""A job is listed for so long beside the time for which records of ended jobs are kept."""
_LOST_S: Final = 3_600
"""A job that was indexed so long ago, and has no record, was refused, deleted or has expired."""
_CURSOR: Final = re.compile(r"(before|after)-([0-9]{1,16})")
_NO_DIGEST: Final = "-"


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
class IndexPage:
    """A page has these jobs, the newest first."""

    names: tuple[str, ...]
    times: tuple[int, ...]
    next: Cursor | None
    """Older jobs follow from here. None: there are none."""
    previous: Cursor | None
    """Newer jobs go before this place. None: there are none."""


class TenantIndex:
    """This class is the index of all tenants of a fleet. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._namespace = connection.settings.namespace
        self._kept_s = connection.settings.retention_s + _UNFINISHED_S
        self._script = load_script(connection.redis, __package__, "index_job")

    def add(self, tenant: str | None, name: str) -> bool:
        """Add a job. Return False if it is in the index.

        Args:
            name: its id, as the tenant knows it.

        Raises BrokerUnavailable.
        """
        with self._connection.translate_errors():
            keys = [self._key(tenant)]
            return bool(self._script(keys=keys, args=[name, _MAX_JOBS, self._kept_s]))

    def remove(self, tenant: str | None, *names: str) -> None:
        """Remove jobs. Raises BrokerUnavailable."""
        with self._connection.translate_errors():
            self._connection.redis.zrem(self._key(tenant), *names)

    def page(self, tenant: str | None, cursor: Cursor | None, size: int) -> IndexPage:
        """Return the newest jobs, or those at a cursor. Raises BrokerUnavailable."""
        at = Cursor(at=0, older=True) if cursor is None else cursor
        key = self._key(tenant)
        more: dict[str, Any] = {"start": 0, "num": size + 1, "withscores": True}

        def read(pipe: Any) -> None:
            if at.older:
                pipe.zrevrangebyscore(key, f"({at.at}" if cursor else "+inf", "-inf", **more)
            else:
                pipe.zrangebyscore(key, f"({at.at}", "+inf", **more)

        with self._connection.translate_errors():
            found = read_key(self._connection.redis, read) or []
        is_last, found = len(found) <= size, found[:size]
        jobs = [(name, int(time)) for name, time in (found if at.older else reversed(found))]
        has_older, has_newer = not (at.older and is_last), not (not at.older and is_last)
        first, last = (jobs[0][1], jobs[-1][1]) if jobs else (0, 0)
        return IndexPage(
            names=tuple(name for name, _ in jobs),
            times=tuple(time for _, time in jobs),
            next=Cursor(at=last, older=True) if jobs and has_older else None,
            previous=Cursor(at=first, older=False) if jobs and has_newer and cursor else None,
        )

    def forget_lost(self, tenant: str | None, page: IndexPage, lost: set[str]) -> None:
        """Remove those of a page's jobs that have no record any more. Raises BrokerUnavailable."""
        latest = (time.time() - _LOST_S) * 1e6
        old = [
            name
            for name, at in zip(page.names, page.times, strict=True)
            if name in lost and at < latest
        ]
        if old:
            self.remove(tenant, *old)

    def _key(self, tenant: str | None) -> str:
        digest = _NO_DIGEST if tenant is None else tenant_digest(tenant)
        return tenant_jobs_key(self._namespace, digest)
