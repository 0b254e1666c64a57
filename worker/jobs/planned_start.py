"""Describe the start of a job that a worker received, as far as its message decides it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.message_origin import MessageOrigin
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.queues.claim_types import Claimed


class ReceivedMessage(Protocol):
    """The parts of a `ClaimedMessage` that the starter reads."""

    @property
    def claimed(self) -> Claimed: ...

    @property
    def origin(self) -> MessageOrigin: ...

    @property
    def job_request(self) -> JobRequest | ImagefleetError: ...


class ReceivedRequest(Protocol):
    """The parts of Celery's `Request` that the starter reads."""

    @property
    def id(self) -> str: ...

    @property
    def message(self) -> ReceivedMessage: ...

    def revoked(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class PlannedStart:
    """The outcome of a message, if its attempt acquires the job record."""

    claimed: Claimed
    outcome: Attempt | ImagefleetError
    origin: MessageOrigin
    received: JobRequest | ImagefleetError
    """The request of the message, or why it cannot be read."""

    @cached_property
    def request(self) -> JobRequest:
        """The request of the message, without the fields that are wrong, if any are."""
        return self.received if isinstance(self.received, JobRequest) else self.origin.request()

    @property
    def job_id(self) -> str:
        return self.origin.job_id

    @property
    def recorded(self) -> bool:
        """Whether the record was created together with the message. If such a record is missing, it
        has expired."""
        return self.origin.recorded
