"""Pack job requests into the keyword arguments of Celery messages, and read them again.

Input: a valid `JobRequest`. Output: a mapping for JSON, or the other way round. This module handles
the versions of the message; it depends on neither queues nor envelopes.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from imagefleet.shared.errors import MessageRejected, NewerMessage
from imagefleet.shared.jobs.parameter_lookups import NEWEST_VERSION, PARAMETERS, is_used
from imagefleet.shared.jobs.request import JobRequest

_MAX_SHOWN: Final = 60
UNREADABLE_PROMPT: Final = "(the prompt cannot be read)"
"""The prompt in the record of a refused message that has no valid one."""
MESSAGE_VERSION: Final = NEWEST_VERSION
"""The newest version of a message. A parameter that workers of the version before could not read
raises it, by its `since` in the table. Jobs without such parameters are sent as version 1, so that
workers of release 0.1.0 can run them."""
SAME_IN_ALL_RELEASES: Final[Mapping[str, object]] = {
    "num_images_per_prompt": 1,
    "preview": False,
    "format": "png",
    "priority": 3,
    "callback_events": ["succeeded", "failed", "cancelled"],
}
"""Defaults that release 0.1.0 has, too. A later release may not change them: messages and records
of other releases leave them out."""
_NEWER: Final = {name: row.since for name, row in PARAMETERS.items() if row.since > 1}
"""The parameters that workers of release 0.1.0 do not read, and the version that each needs."""


def pack(request: JobRequest) -> dict[str, Any]:
    """Return the keyword arguments of the job's Celery message."""
    return {"version": _version_of(request), "request": short_fields(request)}


def stored_text(request: JobRequest) -> str:
    """Return the text of the request in a job's record."""
    return json.dumps(short_fields(request), separators=(",", ":"), ensure_ascii=False)


def short_fields(request: JobRequest) -> dict[str, Any]:
    """Return the fields of a request without those that say nothing: they are what every release
    reads if a field is missing."""
    return {
        name: value
        for name, value in request.model_dump(mode="json").items()
        if value is not None and value != SAME_IN_ALL_RELEASES.get(name)
    }


def _version_of(request: JobRequest) -> int:
    """Return the oldest version whose readers run this job correctly."""
    used = (since for name, since in _NEWER.items() if is_used(name, getattr(request, name)))
    return max(used, default=1)


def request_fields(kwargs: dict[str, Any]) -> object:
    """Return what a message's keyword arguments hold as the request, without checking it.

    Plain Celery may send the fields themselves: `kwargs={"prompt": "a star"}`.
    """
    plain = not {"version", "request"} & kwargs.keys()
    return kwargs if plain else kwargs.get("request")


def unpack(kwargs: object, job_id: str, *, tolerant: bool = False) -> JobRequest:
    """Return the request in a message's keyword arguments; see `pack` and `request_fields`.

    If the message has no seed, the seed is derived from `job_id`, so that every delivery of the
    message asks for the same image.

    Args:
        tolerant: ignore unknown fields, because a producer of imagefleet has accepted the request
            (the message has the header `recorded`). A newer release may have written them;
            `check_all_known` says whether the job needs them. In a message of plain Celery an
            unknown field is an error: it may be a misspelled one.

    Raises:
        NewerMessage: the message has a newer version, which only newer workers can read.
        MessageRejected: the arguments are not those of a job, or have another version.
        InvalidRequest: a field of the request is wrong.
    """
    if not isinstance(kwargs, dict):
        raise MessageRejected("the message has no keyword arguments")
    request = request_fields(kwargs)
    version = MESSAGE_VERSION if request is kwargs else kwargs.get("version")
    if version not in range(1, MESSAGE_VERSION + 1):
        raise wrong_version("message", version, MESSAGE_VERSION)
    if not isinstance(request, dict):
        raise MessageRejected("the message has no request object")
    return JobRequest.parse({"seed": _seed_from_job_id(job_id), **request}, stored=tolerant)


def check_all_known(kwargs: object, known: Collection[str] = ("version", "request")) -> None:
    """Check that a message says nothing that this worker would ignore.

    Args:
        known: keyword arguments that the worker reads.

    Raises:
        NewerMessage: an argument, or a field of the request, is not known here and has a value. A
            newer release wrote it, and without it the job would give another image.
    """
    arguments = kwargs if isinstance(kwargs, dict) else {}
    request = arguments.get("request")
    fields = request if isinstance(request, dict) else {}
    unknown = [name for name, value in arguments.items() if name not in known and value is not None]
    unknown += [
        name
        for name, value in fields.items()
        if name not in JobRequest.model_fields and value is not None
    ]
    if unknown:
        raise NewerMessage(
            f"the message has {repr(unknown[0])[:_MAX_SHOWN]}, which this worker does not know; "
            "upgrade the worker"
        )


def wrong_version(kind: str, version: object, newest: int) -> MessageRejected:
    """Return the error about a message of a version that this worker does not read.

    Args:
        kind: what the error calls the message.
        newest: the newest version that this worker reads.
    """
    is_newer = isinstance(version, int) and version > newest
    advice = (
        "upgrade the worker"
        if is_newer
        else "upgrade the producer, or let workers of its version drain the queue"
    )
    return (NewerMessage if is_newer else MessageRejected)(
        f"the {kind} has version {repr(version)[:40]}, and this worker reads 1 to {newest}; "
        f"{advice}"
    )


def readable_request(arguments: object) -> JobRequest:
    """Return the request in the arguments of a message, without the fields that are wrong."""
    request = request_fields(arguments) if isinstance(arguments, dict) else None
    parameters: dict[str, Any] = request if isinstance(request, dict) else {}
    readable: dict[str, Any] = {"prompt": UNREADABLE_PROMPT}
    for name in JobRequest.model_fields:
        if name in parameters:
            with suppress(Exception):  # pydantic passes on what validators raise
                JobRequest.parse({**readable, name: parameters[name]})
                readable[name] = parameters[name]
    return JobRequest.parse(readable)


def _seed_from_job_id(job_id: str) -> int:
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4])
