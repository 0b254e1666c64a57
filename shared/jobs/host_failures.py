"""Read how many attempts at jobs failed in the last hour, by host and error code.

`failed_attempts.lua` counts them in the same step in which a retry or the end of a job is recorded.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from imagefleet.shared.jobs.model import parse_count
from imagefleet.shared.jobs.redis_keys import host_failures_key

PERIOD_S: Final = 600
_PERIODS: Final = 6
"""An hour has this many periods. The current one comes on top, however much of it is over."""


def failure_keys(namespace: str, now: float) -> list[str]:
    """Return the keys of the counts of the last hour. `now` is a time of the Redis server."""
    latest = int(now // PERIOD_S)
    return [host_failures_key(namespace, latest - age) for age in range(_PERIODS + 1)]


def sum_failures(hashes: Iterable[Mapping[str, str] | None]) -> dict[str, dict[str, int]]:
    """Return the failures by host and code in the hashes of `failure_keys`. Others may have written
    there, so what is no count is left out."""
    failures: dict[str, dict[str, int]] = {}
    for counts in hashes:
        for field, text in (counts or {}).items():
            host, _, code = field.rpartition(" ")
            if host and (count := parse_count(text)) is not None:
                codes = failures.setdefault(host, {})
                codes[code] = codes.get(code, 0) + count
    return failures
