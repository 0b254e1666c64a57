"""Write and read Celery messages without Celery. Only this module of `shared` depends on their
format.

Producers write Celery's message protocol 2 inside kombu's Redis envelope. One server-side script
can then store the job record and the message together, and a process that only submits need not
import Celery. A test compares the messages with those that Celery itself sends.

A message is short, because very many wait: its body is plain text, which needs no `body_encoding`,
and what says nothing is left out (docs/decisions/0021-short-messages-and-records.md).
"""

import base64
import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.request import JobRequest

TASK_NAME = "imagefleet.render"
BULK_TASK_NAME = "imagefleet.bulk_shard"
RECORDED = "recorded"
"""Header of a message that was stored together with its job's record. A message without it came
from plain Celery, and the worker that claims it creates the record. `dead_letter_redrive.lua`
removes the header if the record has expired."""
REQUEST_SHA1: Final = "request_sha1"
"""Header with the SHA-1 of the request in the job's record, so that a worker drops the message of a
job that was deleted, and whose id was given to another job, before the message was claimed."""
_SHA1_LENGTH: Final = 40
_MAX_IMAGES: Final = 10**9
"""No message asks for more images: a job makes at most 64, and a shard must fit a host."""
_TRACE_PARENT: Final = "traceparent"
"""Header with the span in which the job was submitted, as W3C Trace Context writes it:
https://www.w3.org/TR/trace-context/#traceparent-header"""
_TRACE_PARENT_FORM: Final = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def job_message(
    job_id: str,
    request: JobRequest,
    queue: str,
    trace_parent: str | None = None,
    *,
    stored: str | None = None,
    strengths: DefaultStrengths = STABLE_DIFFUSION,
) -> str:
    """Return the Redis list element for one job.

    Args:
        stored: The request in the job's record. None: not known.
        strengths: The model's.
    """
    return task_message(
        TASK_NAME,
        job_id,
        pack(request),
        queue=queue,
        priority=request.priority,
        images=len(request.images),
        steps=_denoised_steps(request, strengths),
        recorded=True,
        request_sha1=None if stored is None else hashlib.sha1(stored.encode()).hexdigest(),
        trace_parent=trace_parent,
    )


def task_message(
    task: str,
    id: str,
    kwargs: dict[str, Any],
    *,
    queue: str,
    priority: int,
    images: int,
    steps: int | None = None,
    recorded: bool = False,
    request_sha1: str | None = None,
    trace_parent: str | None = None,
) -> str:
    """Return the Redis list element for one call of a Celery task. `_headers` explains `images`
    and `steps`.

    Celery message protocol 2: https://docs.celeryq.dev/en/stable/internals/protocol.html
    """
    return _compact(
        {
            "body": _compact([[], kwargs, {}]),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                **_headers(task, id, images, steps, recorded=recorded),
                **({REQUEST_SHA1: request_sha1} if request_sha1 else {}),
                **({_TRACE_PARENT: trace_parent} if trace_parent else {}),
            },
            "properties": {"delivery_info": {"routing_key": queue}, "priority": priority},
        }
    )


def task_arguments(message: str) -> Any:
    """Return the keyword arguments in a Redis list element.

    Raises:
        Exception: it is none of a Celery task. The type depends on what is wrong.
    """
    envelope = json.loads(message)
    body = envelope["body"]
    if envelope["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    return json.loads(body)[1]


def arguments_or_none(message: str) -> object:
    """Return the keyword arguments in a Redis list element; None if they cannot be read."""
    with suppress(Exception):  # anybody can write anything to a queue
        return task_arguments(message)
    return None


def headers_of(message: str) -> dict[str, Any]:
    """Return the headers of a Redis list element; none if they cannot be read."""
    with suppress(Exception):  # anybody can write anything to a queue
        headers = json.loads(message)["headers"]
        return headers if isinstance(headers, dict) else {}
    return {}


def images_of(message: str) -> int:
    """Return how many images a Redis list element asks for: 1 if its header does not say it.

    Anybody can write anything to a queue, so a number that no plan can have counts as none.
    """
    images = headers_of(message).get("images")
    return images if isinstance(images, int) and 1 <= images <= _MAX_IMAGES else 1


def request_sha1_of(headers: Mapping[str, Any]) -> str:
    """Return the SHA-1 of the request in the record that was stored with a message. Empty: not
    known.

    A message without the header RECORDED has no such record, whatever else it says:
    `dead_letter_redrive.lua` removes only this header.
    """
    digest = headers.get(REQUEST_SHA1)
    if headers.get(RECORDED) and isinstance(digest, str) and len(digest) == _SHA1_LENGTH:
        return digest
    return ""


def trace_parent_of(message: str) -> str | None:
    """Return the span in which a job was submitted, as `traceparent`; None if none is known.

    Anybody can write anything into a message, so another form than that of W3C counts as none.
    """
    if _TRACE_PARENT not in message:
        return None
    try:
        found = json.loads(message)["headers"].get(_TRACE_PARENT)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return valid_trace_parent(found)


def valid_trace_parent(found: object) -> str | None:
    """Return what was found as a `traceparent` if it has the form of W3C, else None."""
    return found if isinstance(found, str) and _TRACE_PARENT_FORM.fullmatch(found) else None


def _denoised_steps(request: JobRequest, strengths: DefaultStrengths) -> int | None:
    """Return how many steps the job denoises; None if its steps are the model's default."""
    steps = request.num_inference_steps
    return None if steps is None else request.denoised_steps(steps, strengths)


def _headers(
    task: str, job_id: str, images: int, steps: int | None, *, recorded: bool
) -> dict[str, Any]:
    """Return Celery's headers and three of ours.

    A claim counts `images` and compares `steps` without opening the body. If they are missing, they
    are 1 and the model's default. RECORDED explains `recorded`.
    """
    return {
        "lang": "py",
        "task": task,
        "id": job_id,
        "origin": f"{os.getpid()}@{socket.gethostname()}",
        **({"images": images} if images > 1 else {}),
        **({"steps": steps} if steps else {}),
        **({RECORDED: True} if recorded else {}),
    }


def _compact(value: object) -> str:
    """Return JSON without spaces. Letters stay as they are: escapes would need 6 bytes for one."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
