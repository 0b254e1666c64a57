"""Show a job as a prediction, the object of Replicate's HTTP API.

Input: the status of a job. Output: the object for JSON. The HTTP gateway answers with it, and
workers send it in callbacks. Source: https://replicate.com/docs/topics/predictions.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from imagefleet.shared.jobs.message_arguments import short_fields
from imagefleet.shared.jobs.model import CallbackEvent, State
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import ImageResult
from imagefleet.shared.jobs.status import JobStatus

PREDICTION_STATES: Final[Mapping[State, str]] = {
    State.QUEUED: "starting",
    State.RUNNING: "processing",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "canceled",
}
"""`aborted` is left out: the Python client of Replicate polls such a prediction for ever."""
OWNER: Final = "imagefleet"
"""It stands before the names of models without a `/`, because Replicate's are `owner/name`."""
UNKNOWN_VERSION: Final = "hidden"
"""Which weights make the images is known only when they are made. Replicate writes this, too."""
WEBHOOK_EVENTS: Final[Mapping[str, tuple[CallbackEvent, ...]]] = {
    "start": (CallbackEvent.STARTED,),
    "output": (CallbackEvent.SUCCEEDED,),
    "logs": (CallbackEvent.PROGRESS,),
    "completed": (CallbackEvent.SUCCEEDED, CallbackEvent.FAILED, CallbackEvent.CANCELLED),
}
"""The events of a job that an entry of `webhook_events_filter` stands for."""
_LOCAL: Final = frozenset(
    {"callback_url", "callback_events", "callback_prediction", "tenant", "ttl"}
)
"""The parameters that are no input of the model."""
_BAR_CHARACTERS: Final = 10


def prediction_of(
    status: JobStatus, *, url: str, address_of: Callable[[ImageResult], str]
) -> dict[str, Any]:
    """Return the prediction of a job.

    Args:
        url: the address of the prediction, which ends in its id.
        address_of: returns an address of an image that opens without a key.
    """
    return {
        "id": url.rpartition("/")[2],
        "model": model_of(status),
        "version": version_of(status),
        "input": input_of(status.request),
        "output": output_of(status, address_of),
        "logs": logs_of(status),
        "error": None if status.error is None else status.error.message,
        "status": PREDICTION_STATES[status.state],
        "created_at": iso_time(status.submitted_at),
        "started_at": iso_time(status.started_at),
        "completed_at": iso_time(status.finished_at),
        "data_removed": status.images_deleted_at is not None,
        "metrics": metrics_of(status),
        "urls": {name: f"{url}{path}" for name, path in _PATHS.items()},
        **_webhook_of(status.request),
    }


def _webhook_of(request: JobRequest) -> dict[str, Any]:
    """Return the fields of the webhook; none if there is none."""
    if request.callback_url is None:
        return {}
    asked = set(request.callback_events)
    kinds = [name for name, events in WEBHOOK_EVENTS.items() if asked.issuperset(events)]
    return {"webhook": request.callback_url, "webhook_events_filter": kinds}


def file_of(image: ImageResult) -> str:
    """Return the last part of the address of an image, as in `0.png`."""
    return image.key.rpartition("/")[2]


_PATHS: Final = {"get": "", "cancel": "/cancel", "stream": "/stream", "events": "/events"}


def model_of(status: JobStatus) -> str:
    """Return the model of a job as `owner/name`."""
    made_by = None if status.result is None else status.result.model
    name = status.request.model or made_by or DEFAULT_MODEL
    return name if "/" in name else f"{OWNER}/{name}"


def version_of(status: JobStatus) -> str:
    """Return the digest of the weights that made the images of a job."""
    return UNKNOWN_VERSION if status.result is None else short_digest(status.result.model_digest)


def short_digest(digest: str) -> str:
    """Return the digest of a model as Replicate writes versions, without `sha256:`."""
    return digest.removeprefix("sha256:")


def input_of(request: JobRequest) -> dict[str, Any]:
    """Return the parameters that are inputs of the model, without those that have their default.

    An image that was sent is left out, and so is what follows the `?` of an address: it may be a
    signature.
    """
    fields = {name: value for name, value in short_fields(request).items() if name not in _LOCAL}
    for name in INPUT_FIELDS:
        address = fields.pop(name, None)
        if address and address.startswith(("http://", "https://")):
            fields[name] = address.partition("?")[0]
    return fields


def output_of(status: JobStatus, address_of: Callable[[ImageResult], str]) -> list[str] | None:
    """Return the addresses of the images; None before the job has succeeded, and after they were
    deleted."""
    if status.result is None or status.images_deleted_at is not None:
        return None
    return [address_of(image) for image in status.result.images]


def logs_of(status: JobStatus) -> str:
    """Return how far a job is, as a line that Replicate's clients read: ` 50%|█████     | 4/8`."""
    if not status.steps or (status.state is State.QUEUED):
        return ""
    step, steps = min(status.step, status.steps), status.steps
    bar = "█" * (_BAR_CHARACTERS * step // steps)
    return f"{100 * step // steps:3d}%|{bar:<{_BAR_CHARACTERS}}| {step}/{steps}\n"


def metrics_of(status: JobStatus) -> dict[str, float]:
    """Return the seconds that a job has taken; none before it has ended."""
    if status.finished_at is None:
        return {}
    metrics = {"total_time": round(status.finished_at - status.submitted_at, 3)}
    if status.started_at is not None:
        metrics["predict_time"] = round(status.finished_at - status.started_at, 3)
    return metrics


def iso_time(at: float | None) -> str | None:
    """Return a time in Unix seconds as ISO 8601."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
