"""Find the jobs of a tenant: page by page, newest first, and within a budget of time.

Nothing but the time of a job is indexed, so a search reads records one after the other. It ends
when the page is full or its time is over, and says how far it came; its cursor goes on from there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.jobs.stars import JobStars
from imagefleet.producer.gateway.jobs.tenant_index import TenantIndex
from imagefleet.producer.gateway.jobs.tenant_jobs import owns
from imagefleet.producer.gateway.jobs.timeline import Cursor, Entry, TimelineReader
from imagefleet.producer.gateway.jobs.wanted_jobs import WantedJobs
from imagefleet.shared.jobs.status import JobStatus

BUDGET_S: Final = 0.06
"""A search looks for more for so long. With reading what it found it answers within 0.1 s."""
_AT_ONCE: Final = 500
"""So many records come in one round trip of a search: 6 ms on one core, 1 ms of it in Redis."""
EVERYTHING: Final = WantedJobs()


@dataclass(frozen=True, kw_only=True)
class FoundJobs:
    """A page has these jobs, the newest first."""

    statuses: tuple[JobStatus, ...]
    starred: frozenset[str]
    """These of them, by their stored ids, have a star."""
    next: Cursor | None
    """Older jobs follow from here. None: there are none."""
    previous: Cursor | None
    """Newer jobs go before this place. None: there are none."""
    searched_until: int | None
    """It is the time, in microseconds, of the last job that was looked at. None: of none."""
    complete: bool
    """Whether no further job is to be found in this direction."""


@dataclass(kw_only=True)
class _Progress:
    """How far a search has come."""

    cursor: Cursor | None
    found: list[Entry] = field(default_factory=list)
    """They are in the direction of the search."""
    lost: list[Entry] = field(default_factory=list)
    """These have no record."""
    has_ended: bool = False

    @property
    def older(self) -> bool:
        """Whether it goes from newer to older jobs."""
        return self.cursor is None or self.cursor.older


class JobSearch:
    """This class searches the jobs of all tenants. Threads may share it."""

    def __init__(self, connection: Connection, index: TenantIndex, stars: JobStars) -> None:
        self._connection = connection
        self._index = index
        self._stars = stars
        self._reader = TimelineReader(connection)

    def page(
        self,
        caller: Caller,
        cursor: Cursor | None,
        size: int,
        wanted: WantedJobs = EVERYTHING,
        budget_s: float = BUDGET_S,
    ) -> FoundJobs:
        """Return the newest jobs that are wanted, or those at a cursor. It may block for longer
        than the budget only if Redis is slow.

        Raises BrokerUnavailable.
        """
        progress = _Progress(cursor=cursor)
        at_once = size + 1 if wanted.is_plain else _AT_ONCE
        ends_at = time.monotonic() + budget_s
        while True:
            began = time.monotonic()
            self._look(caller, wanted, progress, size, at_once)
            now = time.monotonic()
            is_over = now + (now - began) > ends_at
            if progress.has_ended or len(progress.found) >= size or is_over:
                break
        self._forget(caller, wanted, progress)
        return self._read(caller, cursor, progress)

    def _look(
        self, caller: Caller, wanted: WantedJobs, progress: _Progress, size: int, at_once: int
    ) -> None:
        """Look at the next records."""
        jobs = self._stars if wanted.starred else self._index
        entries = self._reader.read(
            jobs.timeline(caller.tenant), progress.cursor, at_once, wanted.fields, wanted.span
        )
        starred = self._starred(caller, wanted, [entry.job_id for entry in entries])
        older = progress.older
        for number, entry in enumerate(entries, 1):
            progress.cursor = Cursor(at=entry.at, older=older)
            if not entry.values:  # its lane does not answer
                continue
            if entry.values[0] is None:
                progress.lost.append(entry)
            elif entry.job_id in starred and wanted.accepts(entry.values):
                progress.found.append(entry)
                if len(progress.found) == size:
                    progress.has_ended = number == len(entries) < at_once
                    return
        progress.has_ended = len(entries) < at_once

    def _starred(
        self, caller: Caller, wanted: WantedJobs, job_ids: Sequence[str]
    ) -> frozenset[str]:
        """Return those of these jobs whose star, or lack of one, is as wanted."""
        if wanted.starred is not False:
            return frozenset(job_ids)
        return frozenset(job_ids) - self._stars.among(caller.tenant, job_ids)

    def _forget(self, caller: Caller, wanted: WantedJobs, progress: _Progress) -> None:
        if wanted.starred:
            self._stars.remove(caller.tenant, [entry.job_id for entry in progress.lost])
        else:
            self._index.forget_lost(caller.tenant, progress.lost)

    def _read(self, caller: Caller, asked: Cursor | None, progress: _Progress) -> FoundJobs:
        """Return the page of what was found."""
        older, at = progress.older, progress.cursor
        found = progress.found if older else progress.found[::-1]
        job_ids = [entry.job_id for entry in found]
        statuses = [
            each
            for each in self._connection.read_statuses(job_ids)
            if isinstance(each, JobStatus) and owns(caller, each)
        ]
        on = None if progress.has_ended else at
        back = _back(asked, [entry.at for entry in found])
        looked_at = at is not None and at is not asked
        return FoundJobs(
            statuses=tuple(statuses),
            starred=self._stars.among(caller.tenant, [each.id for each in statuses]),
            next=on if older else back,
            previous=back if older else on,
            searched_until=at.at if at is not None and looked_at else None,
            complete=progress.has_ended,
        )


def _back(asked: Cursor | None, times: Sequence[int]) -> Cursor | None:
    """Return the cursor of the page that lies behind a page, seen in the direction of the search.

    Args:
        asked: the cursor of the page. None: nothing lies behind the first page.
        times: of its jobs, the newest first.
    """
    if asked is None:
        return None
    if asked.older:
        return Cursor(at=times[0] if times else asked.at - 1, older=False)
    return Cursor(at=times[-1] if times else asked.at + 1, older=True)
