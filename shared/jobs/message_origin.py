"""Decide whether a message is of the job whose record has its id.

Input: a message and the request in a record. Output: whether they belong together. Anybody can send
a message with the id of another job. And while a message waits, its job may be deleted and its id
be given to another job.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from imagefleet.shared.errors import ImagefleetError, InvalidRequest
from imagefleet.shared.jobs.celery_message import (
    RECORDED,
    TASK_NAME,
    arguments_or_none,
    headers_of,
    request_sha1_of,
)
from imagefleet.shared.jobs.message_arguments import check_all_known, readable_request, unpack
from imagefleet.shared.jobs.model import JOB_ID
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.submit_errors import check_same_request


@dataclass(frozen=True, kw_only=True)
class MessageOrigin:
    """What a message says of the job that it brings."""

    job_id: str
    arguments: object
    """They are the keyword arguments of the task. They may be anything."""
    recorded: bool
    """Whether the message was stored together with the record of its job."""
    request_sha1: str
    """It is the SHA-1 of the request in that record. Empty: not known."""

    @classmethod
    def parse(cls, message: str) -> Self | None:
        """Read the element of a Redis list. Return None if it brings no job with a valid id."""
        headers = headers_of(message)
        job_id = headers.get("id")
        if headers.get("task") != TASK_NAME or not isinstance(job_id, str):
            return None
        if not JOB_ID.fullmatch(job_id):
            return None
        return cls(
            job_id=job_id,
            arguments=arguments_or_none(message),
            recorded=bool(headers.get(RECORDED)),
            request_sha1=request_sha1_of(headers),
        )

    def matches(self, stored: str) -> bool:
        """Return whether `stored`, the request in the record with this id, is that of the message.

        A message of a producer of release 0.1.0 does not say which request its record has. A
        message of plain Celery has no record of its own, so its parameters decide: the worker that
        created the record may be of another release, which reads them by other rules.
        """
        if self.request_sha1:
            return self.request_sha1 == sha1_of(stored)
        if self.recorded:
            return True
        for request in self._possible_requests():
            with suppress(InvalidRequest):
                check_same_request(self.job_id, request, stored)
                return True
        return False

    def read_request(self) -> JobRequest | ImagefleetError:
        """Return the request of the message, or why this worker cannot read it."""
        try:
            request = unpack(self.arguments, self.job_id, tolerant=self.recorded)
            if self.recorded:
                check_all_known(self.arguments)
            return request
        except ImagefleetError as error:
            return error

    def request(self) -> JobRequest:
        """Return the request of the message; without the fields that are wrong, if any are."""
        accepted = self._unpack(tolerant=self.recorded)
        return readable_request(self.arguments) if accepted is None else accepted

    def _possible_requests(self) -> list[JobRequest]:
        """Return the requests that a worker may have stored for this message: the one that this
        release accepts, else what other releases accept, and what is left of a refused one."""
        accepted = self._unpack(tolerant=False)
        if accepted is not None:
            return [accepted]
        by_others, left = self._unpack(tolerant=True), readable_request(self.arguments)
        return [left] if by_others is None else [by_others, left]

    def _unpack(self, *, tolerant: bool) -> JobRequest | None:
        with suppress(Exception):  # anybody can write anything to a queue
            return unpack(self.arguments, self.job_id, tolerant=tolerant)
        return None


def sha1_of(stored: str) -> str:
    """Return the SHA-1 of a stored request, as REQUEST_SHA1 and transition.lua have it."""
    return hashlib.sha1(stored.encode()).hexdigest()
