"""Queue the messages of queued jobs again that have none, as after `celery purge`.

Jobs with their requests come in; whether each was queued again comes out.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.scripts import call_many, load_script

if TYPE_CHECKING:
    from redis import Redis

RESEND_AFTER_S: Final = 60.0
"""Seconds after which a job that is submitted again, and is still queued, gets a new message if it
has none. They double with each new message of the job."""
_MAX_MESSAGES_SEARCHED: Final = 100
"""Messages in which a job is searched before it gets a new one."""


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
                requests.append((job_id, JobRequest.parse(json.loads(stored))))
        self.resend(requests, after_s=RESEND_AFTER_S, by_compile_key=by_compile_key)

    def resend_stored(self, job_ids: Sequence[str], *, by_compile_key: bool) -> list[bool]:
        """Queue these jobs again by their stored requests; see `resend`.

        Raises:
            InvalidRequest: a request has a field of a newer release, which must not get lost.
        """
        jobs = []
        for job_id in job_ids:
            stored = cast(str, self._redis.hget(job_key(self._namespace, job_id), "request"))
            jobs.append((job_id, JobRequest.parse(json.loads(stored))))
        return self.resend(jobs, by_compile_key=by_compile_key)

    def resend(
        self, jobs: Sequence[tuple[str, JobRequest]], *, by_compile_key: bool, after_s: float = 0
    ) -> list[bool]:
        """Queue those jobs again that are queued, have no message among the first in their queue,
        and were sent more than `after_s` ago. Return for each whether it was queued again."""
        calls = []
        for job_id, request in jobs:
            queue = queue_of(self._namespace, request, by_compile_key=by_compile_key)
            keys = [job_key(self._namespace, job_id), list_key(queue, request.priority)]
            message = job_message(job_id, request, queue)
            calls.append((keys, [job_id, message, after_s, _MAX_MESSAGES_SEARCHED]))
        return [bool(answer) for answer in call_many(self._script, self._redis, calls)]
