"""List the job records of a namespace without an index, page by page.

No index means that submitting costs nothing more, and that a listing looks at every key of the
database. A page takes two round trips, between which Redis serves others.
"""

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.redis_keys import job_key

if TYPE_CHECKING:
    from redis import Redis

_KEYS_PER_PAGE: Final = 1_000
"""Keys of any kind that Redis looks at for one page."""


class JobListing:
    """The listing of one namespace. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._prefix = job_key(namespace, "")

    def page(
        self, cursor: int, *, state: State | None = None, since: float | None = None
    ) -> tuple[int, list[str]]:
        """Return the cursor of the next page, 0 after the last, and the job ids of this page.

        An id may be in two pages. A job that exists from the first page to the last is in one.

        Args:
            cursor: 0 for the first page.
            state, since: leave out jobs that are in another state, or were submitted before this
                time (Unix seconds). Records that cannot be read are not left out.
        """
        answer: Any = self._redis.scan(cursor, match=f"{self._prefix}*", count=_KEYS_PER_PAGE)
        following, keys = cast(tuple[int, list[str]], answer)
        if state is not None or since is not None:
            keys = self._select(keys, state, since)
        return following, [key.removeprefix(self._prefix) for key in keys]

    def _select(self, keys: list[str], state: State | None, since: float | None) -> list[str]:
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(key, ["state", "submitted_at"])
            answers = pipe.execute(raise_on_error=False)
        return [
            key for key, fields in zip(keys, answers, strict=True) if _fits(fields, state, since)
        ]


def _fits(fields: Any, state: State | None, since: float | None) -> bool:
    """Return whether state and time of a record fit, as far as they can be read."""
    if isinstance(fields, Exception):
        return True
    stored_state, submitted_at = fields
    if state is not None and stored_state in tuple(State) and stored_state != state:
        return False
    with suppress(TypeError, ValueError):  # who reads the whole record reports it
        at = float(submitted_at)
        return since is None or not math.isfinite(at) or at >= since
    return True
