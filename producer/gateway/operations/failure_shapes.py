"""Write in JSON what a fleet gave up: failed jobs, dead letters and callbacks.

The prompts, images and addresses of tenants do not stand in it.
"""

import math
from typing import Any, Final

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.jobs.job_ids import shown_id
from imagefleet.producer.gateway.operations.private_text import without_private
from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.message_arguments import request_fields
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.text.printable import printable
from imagefleet.shared.webhooks.outbox_message import CallbackEntry, receiver_of

_MAX_NAME: Final = 128


def failure_body(caller: Caller, status: JobStatus) -> dict[str, Any]:
    """Return a job that failed."""
    request, error = status.request, status.error
    private = (
        *(request.prompt, request.negative_prompt),
        *(request.image, request.mask_image, request.control_image),
    )
    return {
        **_job(caller, status.id, request.tenant),
        "code": None if error is None else error.code,
        "reason": None if error is None else without_private(error.message, private),
        "host": None if status.worker is None else host_of(status.worker),
        "model": request.model,
        "at": status.finished_at,
        "retries": status.retries,
    }


def dead_letter_body(caller: Caller, letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter."""
    fields = _request_of(letter)
    tenant, prompt = fields.get("tenant"), fields.get("prompt")
    private = (prompt,) if isinstance(prompt, str) else ()
    return {
        "id": letter.id,
        **_job(caller, letter.job_id, tenant if isinstance(tenant, str) else None),
        "code": letter.code,
        "reason": without_private(letter.reason, private),
        "host": None if letter.worker is None else host_of(letter.worker),
        "at": letter.at,
        "deliveries": letter.deliveries,
        "queue": printable(letter.list_key),
        "can_be_redriven": not letter.is_cut,
    }


def callback_body(entry: CallbackEntry) -> dict[str, Any]:
    """Return a callback that was given up."""
    last = entry.last
    return {
        "id": entry.id,
        "job_id": entry.job_id,
        "receiver": receiver_of(entry.url),
        "at": entry.at if math.isfinite(entry.at) else None,
        "attempts": entry.attempts,
        "verdict": None if last is None else last.verdict.value,
        "status": None if last is None else last.status,
        "reason": None if last is None else without_private(last.reason, (entry.url,)),
    }


def _job(caller: Caller, job_id: str | None, tenant: str | None) -> dict[str, Any]:
    """Return the ids of a job: that by which the command line knows it, and that of its tenant if
    this is the caller's."""
    tenant = None if tenant is None else printable(tenant, _MAX_NAME)
    is_own = caller.tenant is None or caller.tenant == tenant
    own_id = None if job_id is None or not is_own else shown_id(caller.tenant, job_id)
    return {"job_id": job_id, "own_id": own_id, "tenant": tenant}


def _request_of(letter: DeadLetter) -> dict[str, Any]:
    """Return the parameters in the message of a letter; none if they cannot be read."""
    arguments = letter.arguments
    fields = request_fields(arguments) if isinstance(arguments, dict) else None
    return fields if isinstance(fields, dict) else {}
