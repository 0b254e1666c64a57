"""Say which jobs a listing yields: by state, tenant and time of submission."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """The filter of one listing. None accepts everything."""

    state: State | None
    tenant: str | None
    """'' stands for the jobs without a tenant."""
    since: float | None
    """It is a time in Unix seconds."""

    @classmethod
    def parse(
        cls, state: State | str | None, tenant: str | None, since: datetime | float | None
    ) -> Self:
        """Check what a caller gives.

        Raises:
            InvalidRequest: there is no such state, a value has another type, or a datetime no time
                zone.
        """
        if state is not None and state not in tuple(State):
            raise InvalidRequest("state", state, f"must be one of {', '.join(State)}")
        if not isinstance(tenant, str | None):
            raise InvalidRequest("tenant", tenant, "must be a text; '' for jobs without a tenant")
        if isinstance(since, datetime):
            if since.tzinfo is None:
                raise InvalidRequest(
                    "since", since, "must have a time zone, as datetime.now(UTC) has"
                )
            since = since.timestamp()
        is_number = isinstance(since, int | float) and not isinstance(since, bool)
        if since is not None and not (is_number and math.isfinite(since)):
            raise InvalidRequest("since", since, "must be a datetime, or Unix seconds")
        return cls(state=None if state is None else State(state), tenant=tenant, since=since)

    def accepts(self, status: JobStatus) -> bool:
        """Return whether the listing yields this job."""
        return (
            self.state in (None, status.state)
            and self.tenant in (None, status.request.tenant or "")
            and (self.since is None or status.submitted_at >= self.since)
        )
