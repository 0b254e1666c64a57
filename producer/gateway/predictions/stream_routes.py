"""Routes that send the events of a prediction as they happen."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.predictions.event_place import EventPlace
from imagefleet.producer.gateway.predictions.predictions_document import STREAMED
from imagefleet.producer.gateway.predictions.shown import shown
from imagefleet.producer.gateway.predictions.stream import (
    PredictionEvents,
    TellEvents,
    tell_ours,
    tell_theirs,
)
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of
from imagefleet.producer.gateway.web.events import event_stream
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus

router: Final = APIRouter(prefix="/v1/predictions", tags=["Predictions"])
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]


@router.get("/{prediction_id}/stream", **STREAMED)
async def stream_prediction(request: Request, caller: Reader, prediction_id: str) -> Response:
    """Send the events that Replicate's clients know: logs, output, error, done."""
    status = await gateway_of(request).jobs.status(caller, prediction_id)
    return _stream(request, caller, status, tell_theirs, "error")


@router.get("/{prediction_id}/events", **STREAMED)
async def follow_prediction(request: Request, caller: Reader, prediction_id: str) -> Response:
    """Send all events, as JSON: queued, started, step, preview, uploaded, done, stopping."""
    jobs = gateway_of(request).jobs
    status = await jobs.status(caller, prediction_id)
    length = await jobs.queue_length(status) if status.state is State.QUEUED else None
    tell = partial(tell_ours, queue_length=length)
    return _stream(request, caller, status, tell, "stopping")


def _stream(
    request: Request, caller: Caller, status: JobStatus, tell: TellEvents, last_event_name: str
) -> Response:
    gateway = gateway_of(request)
    show = partial(shown, gateway, base_url(request), caller)
    last = EventPlace.parse(request.headers.get("last-event-id"))
    events = PredictionEvents(show, tell, last, last_event_name)

    async def follow() -> AsyncGenerator[str]:
        async with gateway.jobs.watch(status) as statuses:
            async for text in events.follow(statuses):
                yield text

    return event_stream(follow(), events.last_event)
