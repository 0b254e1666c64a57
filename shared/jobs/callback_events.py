"""Build the callbacks that report a job's events to its producer.

Input: an event and its job. Output: the message that waits in the outbox. This module writes the
body; `shared.webhooks.signature` signs it, and `worker.webhooks` delivers it.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from imagefleet.shared.jobs.model import CallbackEvent, JobError, State
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult

_STATE_OF = {
    CallbackEvent.STARTED: State.RUNNING,
    CallbackEvent.PROGRESS: State.RUNNING,
    CallbackEvent.SUCCEEDED: State.SUCCEEDED,
    CallbackEvent.FAILED: State.FAILED,
    CallbackEvent.CANCELLED: State.CANCELLED,
}


@dataclass(frozen=True, kw_only=True)
class Callback:
    """A callback is one entry of the outbox.

    Its `id` depends on the event only, so that no event is queued twice.
    """

    id: str
    message: str


def build_callback(
    event: CallbackEvent,
    job_id: str,
    request: JobRequest,
    *,
    step: int = 0,
    steps: int = 0,
    result: JobResult | None = None,
    error: JobError | None = None,
    worker: str | None = None,
    trace_parent: str | None = None,
) -> Callback | None:
    """Return the callback for an event, or None if the request did not ask for it.

    Args:
        worker: the worker that runs the job, or ran it; None if none did.
        trace_parent: the span in which the event happened, as `traceparent`; its delivery gets a
            span below it.
    """
    if request.callback_url is None or event not in request.callback_events:
        return None
    data: dict[str, object] = {"id": job_id, "state": _STATE_OF[event].value}
    if request.metadata:
        data["metadata"] = request.metadata
    if worker:
        data["worker"] = worker
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
    if request.tenant is not None:
        message["tenant"] = request.tenant
    if trace_parent is not None:
        message["trace_parent"] = trace_parent
    return Callback(id=callback_id, message=json.dumps(message))
