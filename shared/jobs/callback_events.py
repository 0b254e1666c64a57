"""Build the callbacks that report a job's events to its producer.

Input: an event and its job. Output: the message that waits in the outbox. This module writes the
body; `shared.webhooks.signature` signs it, and `worker.webhooks` delivers it.
"""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from imagefleet.shared.jobs.model import TERMINAL, CallbackEvent, JobError, State
from imagefleet.shared.jobs.prediction import file_of, prediction_of
from imagefleet.shared.jobs.prediction_address import PredictionAddress
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.status import JobStatus

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


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """When a job was submitted and started, in Unix seconds; None: not known."""

    submitted_at: float | None = None
    started_at: float | None = None


NO_TIMES: Final = JobTimes()


@dataclass(frozen=True, kw_only=True)
class ToldStatus:
    """What a callback tells of its job, beside the request."""

    state: State
    step: int
    steps: int
    result: JobResult | None
    error: JobError | None
    worker: str | None
    times: JobTimes


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
    times: JobTimes = NO_TIMES,
    trace_parent: str | None = None,
) -> Callback | None:
    """Return the callback for an event, or None if the request did not ask for it.

    Args:
        worker: the worker that runs the job, or ran it; None if none did.
        times: predictions tell of them, as far as they are known.
        trace_parent: the span in which the event happened, as `traceparent`; its delivery gets a
            span below it.
    """
    if request.callback_url is None or event not in request.callback_events:
        return None
    told = ToldStatus(
        state=_STATE_OF[event],
        step=step,
        steps=steps,
        result=result,
        error=error,
        worker=worker,
        times=times,
    )
    callback_id = f"{job_id}.{event}" + (f".{step}" if event is CallbackEvent.PROGRESS else "")
    if request.callback_prediction is None:
        body = _event_body(event, job_id, request, told)
    else:
        body = _prediction_body(request.callback_prediction, job_id, request, told)
    message = {
        "id": callback_id,
        "job_id": job_id,
        "url": request.callback_url,
        "body": json.dumps(body),
        "attempts": 0,
    }
    if request.tenant is not None:
        message["tenant"] = request.tenant
    if trace_parent is not None:
        message["trace_parent"] = trace_parent
    return Callback(id=callback_id, message=json.dumps(message))


def _event_body(
    event: CallbackEvent, job_id: str, request: JobRequest, told: ToldStatus
) -> dict[str, object]:
    data: dict[str, object] = {"id": job_id, "state": told.state.value}
    if request.metadata:
        data["metadata"] = request.metadata
    if told.worker:
        data["worker"] = told.worker
    if told.steps:
        data |= {"step": told.step, "steps": told.steps}
    if told.result is not None:
        data["result"] = told.result.model_dump(mode="json")
    if told.error is not None:
        data["error"] = told.error.model_dump(mode="json")
    return {"type": f"job.{event}", "timestamp": datetime.now(UTC).isoformat(), "data": data}


def _prediction_body(
    address: str, job_id: str, request: JobRequest, told: ToldStatus
) -> dict[str, object]:
    """Return the job as a prediction of an HTTP gateway."""
    gateway, now = PredictionAddress.parse(address), time.time()
    steps = told.steps or request.num_inference_steps or 0
    started_at = now if told.state is State.RUNNING else None
    status = JobStatus(
        id=job_id,
        state=told.state,
        request=request,
        submitted_at=told.times.submitted_at or 0,
        started_at=told.times.started_at or started_at,
        finished_at=now if told.state in TERMINAL else None,
        step=told.step if told.result is None else steps,
        steps=steps,
        result=told.result,
        error=told.error,
    )
    prediction = prediction_of(
        status,
        url=gateway.url,
        address_of=lambda image: gateway.image_url(job_id, file_of(image)),
    )
    if not told.times.submitted_at:
        prediction |= {"created_at": None, "metrics": {}}
    return prediction
