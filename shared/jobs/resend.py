"""Queue the messages of queued jobs again that have none, as after `celery purge`.

Input: jobs with their requests. Output: whether each was queued again.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from imagefleet.shared.errors import InvalidRequest, UnreadableRecord
from imagefleet.shared.jobs.add_ons import chosen_add_ons
from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.queues import list_for_add_ons, list_key, queue_of
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import status_or_error, unknown_job_error
from imagefleet.shared.redis_client.scripts import call_many, load_script

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

RESEND_AFTER_S: Final = 60.0
"""Seconds after which a job that is submitted again, and is still queued, gets a new message if it
has none. They double with each new message of the job."""
_MAX_MESSAGES_SEARCHED: Final = 100
"""Messages in which a job is searched before it gets a new one."""
_JOBS_PER_CALL: Final = 500


class _StoredJob(NamedTuple):
    """A job to send again."""

    id: str
    stored: str
    """It is the request in its record."""
    request: JobRequest


class Resender:
    """The resender queues jobs of one namespace again. Threads may share it."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self._script = load_script(client, __package__, "resend")

    def resend_lost(self, jobs: Sequence[tuple[str, str]], *, by_compile_key: bool) -> None:
        """Resend those of these jobs (id, stored request) that wait for long."""
        requests = []
        for job_id, stored in jobs:
            with suppress(ValueError, InvalidRequest):  # a newer release has to resend its own
                requests.append(_StoredJob(job_id, stored, _whole_request(stored)))
        self._resend(requests, after_s=RESEND_AFTER_S, by_compile_key=by_compile_key)

    def resend_stored(self, job_ids: Sequence[str], *, by_compile_key: bool) -> list[bool]:
        """Queue these jobs again by their stored requests; see `resend`.

        Raises:
            UnknownJob, UnreadableRecord: of a job; nothing was queued.
            InvalidRequest: a request has a field of a newer release, which must not get lost;
                nothing was queued.
        """
        requests: list[_StoredJob] = []
        for some in _parts(job_ids):
            requests += self._read_requests(some)
        return self._resend(requests, by_compile_key=by_compile_key)

    def _resend(
        self, jobs: Sequence["_StoredJob"], *, by_compile_key: bool, after_s: float = 0
    ) -> list[bool]:
        """Queue those jobs again that are queued, have no message among the first in their queues,
        and were sent more than `after_s` ago. Return for each whether it was queued again."""
        answers: list[Any] = []
        for some in _parts(jobs):
            calls = [self._call(job, by_compile_key, after_s) for job in some]
            answers += call_many(self._script, self._redis, calls)
        return [bool(answer) for answer in answers]

    def _call(
        self, job: "_StoredJob", by_compile_key: bool, after_s: float
    ) -> tuple[list[str], list[Any]]:
        """Return keys and arguments of the script for one job."""
        job_id, stored, request = job
        queues = {
            by_key: queue_of(self._namespace, request, by_compile_key=by_key)
            for by_key in (True, False)
        }
        lists = {by_key: list_key(queue, request.priority) for by_key, queue in queues.items()}
        message = job_message(job_id, request, queues[by_compile_key], stored=stored)
        searched = [lists[by_compile_key], lists[not by_compile_key]]
        if names := chosen_add_ons(request):
            searched += [list_for_add_ons(key, names) for key in searched]
        return (
            [job_key(self._namespace, job_id), *searched],
            [job_id, message, after_s, _MAX_MESSAGES_SEARCHED],
        )

    def _read_requests(self, job_ids: Sequence[str]) -> list["_StoredJob"]:
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(job_key(self._namespace, job_id))
            answers = pipe.execute(raise_on_error=False)
        return [
            _stored_job(job_id, answer) for job_id, answer in zip(job_ids, answers, strict=True)
        ]


def _stored_job(job_id: str, answer: Any) -> _StoredJob:
    """Return the job in the `answer` of HGETALL. Raises as `Resender.resend_stored`."""
    status = status_or_error(job_id, answer)
    if status is None:
        raise unknown_job_error(job_id)
    if isinstance(status, UnreadableRecord):
        raise status
    stored = answer["request"]
    return _StoredJob(job_id, stored, _whole_request(stored))


def _whole_request(stored: str) -> JobRequest:
    """Return a stored request.

    Raises:
        InvalidRequest: it has a field of a newer release, which must not get lost.
    """
    request = JobRequest.parse_stored(stored)
    for field in json.loads(stored).keys() - JobRequest.model_fields.keys():
        raise InvalidRequest(field, "…", "is a field of a newer release")
    return request


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield `items` in parts: Redis answers a part at a time, and serves others in between."""
    for start in range(0, len(items), _JOBS_PER_CALL):
        yield items[start : start + _JOBS_PER_CALL]
