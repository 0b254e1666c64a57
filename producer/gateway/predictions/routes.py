"""Routes of predictions in Replicate's shape: https://replicate.com/docs/reference/http."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.jobs.job_ids import check_name
from imagefleet.producer.gateway.jobs.timeline import Cursor
from imagefleet.producer.gateway.predictions.create import NewPrediction, create
from imagefleet.producer.gateway.predictions.headers import cancel_after_s, wait_s
from imagefleet.producer.gateway.predictions.models import FleetModels
from imagefleet.producer.gateway.predictions.prediction_request import PredictionRequest
from imagefleet.producer.gateway.predictions.predictions_document import (
    CREATED,
    LISTED,
    SHOWN,
    creating,
)
from imagefleet.producer.gateway.predictions.shown import shown, url_of
from imagefleet.producer.gateway.problems import STOPPING, Problem
from imagefleet.producer.gateway.web.bodies import read_json
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of
from imagefleet.producer.gateway.web.connected import while_connected
from imagefleet.producer.gateway.web.held_bytes import held_bytes
from imagefleet.producer.gateway.web.refused_tries import submitting
from imagefleet.shared.jobs.status import JobStatus

router: Final = APIRouter(prefix="/v1", tags=["Predictions"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
PAGE_SIZE: Final = 100
_CREATING: Final[dict[str, Any]] = {
    "status_code": 201,
    "responses": CREATED,
    "openapi_extra": creating(),
}


@router.post("/predictions", **_CREATING)
async def create_prediction(request: Request, caller: Submitter) -> Response:
    """Create a prediction: one job. `Prefer: wait` answers when it has ended."""
    return await _create(request, caller)


@router.post("/models/{model:path}/predictions", **_CREATING)
async def create_prediction_of_model(request: Request, caller: Submitter, model: str) -> Response:
    """Create a prediction of a model, as `owner/name`."""
    return await _create(request, caller, model=model)


@router.get("/models/{model:path}/predictions", include_in_schema=False)
async def refuse_get(model: str) -> Response:
    """Refuse what else would be read as the name of a model."""
    message = "predictions are created here by POST"
    raise HTTPException(405, message, headers={"allow": "POST"})


@router.put("/predictions/{prediction_id}", **_CREATING)
async def put_prediction(request: Request, caller: Submitter, prediction_id: str) -> Response:
    """Create a prediction with an id of your own; the same again is the same prediction."""
    return await _create(request, caller, name=check_name("prediction_id", prediction_id))


@router.get("/predictions", responses=LISTED)
async def list_predictions(
    request: Request, caller: Reader, cursor: Annotated[str | None, Query()] = None
) -> Response:
    """List the predictions of the caller's tenant, the newest first."""
    gateway = gateway_of(request)
    place = None if cursor is None else Cursor.parse(cursor)
    page = await gateway.searches.run(gateway.search.page, caller, place, PAGE_SIZE)
    base = base_url(request)

    def page_url(at: Cursor | None) -> str | None:
        return None if at is None else f"{base}/v1/predictions?cursor={at}"

    return JSONResponse(
        {
            "previous": page_url(page.previous),
            "next": page_url(page.next),
            "results": [shown(gateway, base, caller, each) for each in page.statuses],
        }
    )


@router.get("/predictions/{prediction_id}", responses=SHOWN)
async def get_prediction(request: Request, caller: Reader, prediction_id: str) -> Response:
    """Return a prediction as it is now."""
    gateway = gateway_of(request)
    status = await gateway.jobs.status(caller, prediction_id)
    return JSONResponse(shown(gateway, base_url(request), caller, status))


@router.post("/predictions/{prediction_id}/cancel", responses=SHOWN)
async def cancel_prediction(request: Request, caller: Submitter, prediction_id: str) -> Response:
    """Cancel a prediction: at once if it has not started, else between two steps."""
    gateway = gateway_of(request)
    await gateway.jobs.cancel(caller, prediction_id)
    status = await gateway.jobs.status(caller, prediction_id)
    return JSONResponse(shown(gateway, base_url(request), caller, status))


async def _create(
    request: Request, caller: Caller, *, model: str | None = None, name: str | None = None
) -> Response:
    gateway, wait = gateway_of(request), wait_s(request.headers)
    name = await _submit(request, caller, await read_json(request), model=model, name=name)
    held_bytes(request).release()
    status = await while_connected(request, _await(gateway, caller, name, wait))
    answer = shown(gateway, base_url(request), caller, status)
    if wait and not status.done:
        answer["status"] = "starting"  # the clients of Replicate read any other as an end
    headers = {"location": url_of(base_url(request), name)}
    return JSONResponse(answer, 201, headers)


async def _submit(
    request: Request, caller: Caller, body: dict[str, Any], *, model: str | None, name: str | None
) -> str:
    """Submit the job that a body asks for, and return its id."""
    gateway, cancel_after = gateway_of(request), cancel_after_s(request.headers)
    asked = PredictionRequest.parse(body)
    offers = await gateway.threads.run(gateway.client.offers)
    models = FleetModels(offers=offers, aliases=gateway.settings.model_aliases)
    name = name or await _name_of(request, caller)
    new = NewPrediction(
        name=name,
        parameters=asked.job_parameters(models, model),
        webhook=asked.webhook_parameters(),
        base_url=base_url(request),
        cancel_after_s=cancel_after,
        names=asked.names(),
        fields=asked.fields(),
    )
    with submitting(request, job=name):
        await create(gateway, caller, new)
    return name


async def _name_of(request: Request, caller: Caller) -> str:
    """Return the id of a new prediction, or that of a repeated request."""
    if "idempotency-key" not in request.headers:
        return gateway_of(request).jobs.new_name(caller)
    repeats = gateway_of(request).repeats
    return (await repeats.job_of(caller, request.url.path, b"", request.headers)).name


async def _await(gateway: Gateway, caller: Caller, name: str, wait: int) -> JobStatus:
    """Return the status of a job once it has ended, or as it is when the wait is over."""
    if wait:
        try:
            return await gateway.jobs.wait(caller, name, wait)
        except Problem as problem:
            if problem.code != STOPPING:
                raise
    return await gateway.jobs.status(caller, name)
