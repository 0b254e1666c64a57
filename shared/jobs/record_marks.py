"""Tell by a few fields of job records whether they have changed, without reading them whole.

Input: job ids. Output: the mark of each record, which differs after every change that shows in a
`JobStatus`. Reading it costs Redis and this process a small part of reading the record.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from imagefleet.shared.jobs.record_reader import read_records
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.jobs.status import JobStatus

if TYPE_CHECKING:
    from redis import Redis

Mark = tuple[object, ...]

_TIMES_AND_COUNTS: Final = (
    "submitted_at",
    "finished_at",
    "retry_at",
    "step",
    "deliveries",
    "retries",
)


def mark_of(status: JobStatus) -> Mark:
    """Return the mark of the record that says this status."""
    return (status.state.value, *(getattr(status, name) or 0 for name in _TIMES_AND_COUNTS))


def read_marks(client: "Redis", namespace: str, job_ids: Sequence[str]) -> list[Mark]:
    """Return the mark of each record in one round trip. No status has that of a missing or
    damaged one."""
    keys = [job_key(namespace, job_id) for job_id in job_ids]
    names = ["state", *_TIMES_AND_COUNTS]
    return [_parse(answer) for answer in read_records(client, keys, lambda p, k: p.hmget(k, names))]


def _parse(answer: Any) -> Mark:
    """Return the mark in the answer of HMGET, which may be an error."""
    if isinstance(answer, Exception):
        return (str(answer),)
    try:
        return (answer[0], *(float(field or 0) for field in answer[1:]))
    except ValueError:
        return tuple(answer)
