"""What a callback says: from a job's event to the message that waits in the webhook outbox.

Knows the body, not the signature (`shared.webhooks.signature`) and not the sending
(`worker.webhooks`).
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from imagefleet.shared.jobs.model import CallbackEvent, JobError, JobRequest, JobResult, State

_STATE_OF = {
    CallbackEvent.STARTED: State.RUNNING,
    CallbackEvent.PROGRESS: State.RUNNING,
    CallbackEvent.SUCCEEDED: State.SUCCEEDED,
    CallbackEvent.FAILED: State.FAILED,
    CallbackEvent.CANCELLED: State.CANCELLED,
}


@dataclass(frozen=True, kw_only=True)
class Callback:
    """One entry of the outbox. `id` is stable, so the same event is never queued twice."""

    id: str
    message: str


def callback(
    event: CallbackEvent,
    job_id: str,
    request: JobRequest,
    *,
    step: int = 0,
    steps: int = 0,
    result: JobResult | None = None,
    error: JobError | None = None,
) -> Callback | None:
    """The callback this event owes the producer, or None if it did not ask for it."""
    if request.callback_url is None or event not in request.callback_events:
        return None
    data: dict[str, object] = {"id": job_id, "state": _STATE_OF[event].value}
    if steps:
        data |= {"step": step, "steps": steps}
    if result is not None:
        data["result"] = result.model_dump(mode="json")
    if error is not None:
        data["error"] = error.model_dump(mode="json")
    callback_id = f"{job_id}.{event}" + (f".{step}" if event is CallbackEvent.PROGRESS else "")
    kind = f"job.{event}"
    body = json.dumps({"type": kind, "timestamp": datetime.now(UTC).isoformat(), "data": data})
    message = {
        "id": callback_id,
        "job_id": job_id,
        "url": request.callback_url,
        "body": body,
        "attempts": 0,
    }
    return Callback(id=callback_id, message=json.dumps(message))
