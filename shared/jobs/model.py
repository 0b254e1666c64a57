"""Define the vocabulary of jobs: states and their transitions, errors and ids.

`docs/glossary.md` defines the terms. This module does not depend on Redis, Celery or devices.
"""

import re
import uuid
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
)

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.text.printable import printable

JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""This is a count that Redis can keep. Anybody may have written other numbers; they are refused."""
Time = Annotated[float, Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]
"""This is a time in Unix seconds, up to the year 9999."""
Measured = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""This is a duration, rate or share that a worker measured."""

_MAX_DIGITS: Final = 15
"""A number with more digits is no count of ours. Lua counts exactly so far."""

MAX_ERROR_CHARACTERS: Final = 2_000
"""The message of an error in a record, or of a dead letter, has at most this many characters."""


class State(StrEnum):
    """A job is in exactly one of these states."""

    QUEUED = "queued"  # accepted; it waits for devices
    RUNNING = "running"  # an attempt generates, encodes or uploads its images
    SUCCEEDED = "succeeded"  # every image is stored and recorded
    FAILED = "failed"  # it will not be tried again; `error` says why
    CANCELLED = "cancelled"  # its producer cancelled it


TRANSITIONS: Final = MappingProxyType(
    {
        State.QUEUED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
        State.RUNNING: frozenset(
            {State.RUNNING, State.QUEUED, State.SUCCEEDED, State.FAILED, State.CANCELLED}
        ),
        State.SUCCEEDED: frozenset[State](),
        State.FAILED: frozenset[State](),
        State.CANCELLED: frozenset[State](),
    }
)
"""Each state allows these transitions. RUNNING to RUNNING is a new attempt after a worker died.
RUNNING to QUEUED is a requeue or a retry."""

TERMINAL: Final = frozenset(state for state, targets in TRANSITIONS.items() if not targets)


class ImageFormat(StrEnum):
    """An image is stored in one of these file formats."""

    PNG = "png"
    WEBP = "webp"
    JPEG = "jpeg"


class CallbackEvent(StrEnum):
    """A callback reports one of these events. The type in its body is `job.<event>`."""

    STARTED = "started"
    PROGRESS = "progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


def parse_count(text: str) -> int | None:
    """Return a count that a script keeps; None if it is damaged. `submit.lua` reads limits so."""
    is_count = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_count else None


class Model(BaseModel):
    """Base of all records that are stored or sent: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_QUEUE_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}")


def check_name(name: str) -> str:
    """Return the name of a model, scheduler or tenant. It may become part of a queue's name.

    Raises:
        ValueError: it has other characters than are allowed, or too many.
    """
    if not _QUEUE_SAFE.fullmatch(name):
        raise ValueError(
            "must be 1 to 128 letters, digits, '_', '.', '+', '/' or '-', and begin with a letter "
            "or digit"
        )
    return name


QueueSafeName = Annotated[str, AfterValidator(check_name)]


class JobError(Model):
    """A job that failed has this error. `code` is the code of an error in `shared.errors`."""

    code: str
    message: str

    @field_validator("message")
    @classmethod
    def _make_printable(cls, message: str) -> str:
        """Escape and bound the text, which may quote a server; record and callback carry it."""
        return printable(message, MAX_ERROR_CHARACTERS)


def new_job_id() -> str:
    """Return a random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def check_job_id(job_id: object) -> str:
    """Return `job_id` if it is valid. It becomes part of object keys, so it must be plain.

    Raises:
        InvalidRequest: it is not a string of allowed characters.
    """
    if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
        raise InvalidRequest(
            "id",
            job_id,
            "must be 1 to 128 letters, digits, '_', '.' or '-', and begin with a letter or digit",
        )
    return job_id
