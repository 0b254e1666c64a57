"""Routes that make images, one job for each request."""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.problems import wrong_parameter
from imagefleet.producer.gateway.web.bodies import read_json
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.connected import while_connected
from imagefleet.producer.gateway.web.held_bytes import HeldBytes, held_bytes
from imagefleet.producer.gateway.web.image_json import image_json
from imagefleet.producer.gateway.web.refused_tries import submitting
from imagefleet.producer.gateway.web.request_log import JOB_HEADER
from imagefleet.producer.gateway.webui.chosen_model import chosen_model
from imagefleet.producer.gateway.webui.document import (
    GENERATION_ANSWERS,
    img2img_body,
    txt2img_body,
)
from imagefleet.producer.gateway.webui.generation_request import GenerationRequest
from imagefleet.producer.gateway.webui.generation_response import generation_body
from imagefleet.producer.gateway.webui.open_jobs import OpenJobs
from imagefleet.producer.gateway.webui.start_images import StartImages
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.cfg_scale import guidance_scale_of
from imagefleet.shared.jobs.queues import DEFAULT_MODEL

router: Final = APIRouter(prefix="/sdapi/v1", tags=["AUTOMATIC1111"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
_REPEATABLE: Final = "idempotency-key"
_GUIDANCE: Final = "guidance_scale"


@router.post("/txt2img", responses=GENERATION_ANSWERS, openapi_extra=txt2img_body())
async def txt2img(request: Request, caller: Submitter) -> Response:
    """Generate images of a prompt, and answer when they are there."""
    asked, name = await _submit(request, caller, await read_json(request), has_image=False)
    return await _answer(request, caller, asked, name)


@router.post("/img2img", responses=GENERATION_ANSWERS, openapi_extra=img2img_body())
async def img2img(request: Request, caller: Submitter) -> Response:
    """Generate images that start from an image. With a mask only its white part changes."""
    asked, name = await _submit(request, caller, await read_json(request), has_image=True)
    return await _answer(request, caller, asked, name)


async def _submit(
    request: Request, caller: Caller, fields: dict[str, Any], *, has_image: bool
) -> tuple[GenerationRequest, str]:
    """Submit the job that a body asks for. Return its id, and what its answer shows: nothing that
    is large."""
    gateway = gateway_of(request)
    start = StartImages.take(fields) if has_image else None
    asked = GenerationRequest.parse(fields, has_image=start is not None)
    parameters = await _with_model(gateway, caller, asked)
    if start is not None:
        parameters |= await gateway.decoding.run(start.parameters)
    name = await _name(request, caller)
    try:
        with submitting(request, job=name):
            await gateway.jobs.submit(caller, parameters, name=name)
    except InvalidRequest as error:
        raise wrong_parameter(error, asked.names, asked.echo) from None
    await OpenJobs(gateway, caller).add(name)
    held_bytes(request).release()
    return replace(asked, parameters={}), name


async def _answer(
    request: Request, caller: Caller, asked: GenerationRequest, name: str
) -> Response:
    gateway = gateway_of(request)
    waiting = _wait(gateway, caller, name, asked, held_bytes(request))
    return image_json(await while_connected(request, waiting), {JOB_HEADER: name})


async def _with_model(gateway: Gateway, caller: Caller, asked: GenerationRequest) -> dict[str, Any]:
    """Return the parameters with the caller's model. Brackets weigh words, as in the web UI, if the
    workers of the model can do that, and the CFG scale is converted for the model."""
    parameters = dict(asked.parameters)
    model = parameters.get("model") or await chosen_model(gateway, caller)
    if isinstance(model, str):
        parameters["model"] = model = gateway.settings.model_aliases.get(model, model)
    offers = await gateway.threads.run(gateway.client.offers)
    offer = offers.get(str(model or DEFAULT_MODEL))
    if offer is not None and offer.prompt_chunks:
        parameters.setdefault("prompt_weighting", True)
    if offer is not None and _GUIDANCE in asked.names:  # else it is given in diffusers' name
        parameters[_GUIDANCE] = guidance_scale_of(parameters[_GUIDANCE], offer.unguided_scale)
    return parameters


async def _name(request: Request, caller: Caller) -> str:
    """Return the id of the job. Clients of this API repeat no requests, and send equal ones to get
    other images; so only an `Idempotency-Key` makes two requests one job."""
    if _REPEATABLE not in request.headers:
        return gateway_of(request).jobs.new_name(caller)
    repeats = gateway_of(request).repeats
    return (await repeats.job_of(caller, request.url.path, b"", request.headers)).name


async def _wait(
    gateway: Gateway, caller: Caller, name: str, asked: GenerationRequest, held: HeldBytes
) -> dict[str, Any]:
    status = await gateway.jobs.wait(caller, name, gateway.settings.http_wait_s)
    if status.done:
        await OpenJobs(gateway, caller).remove(name)
    as_known = status.model_copy(update={"id": name})  # errors name the job so
    return await generation_body(gateway.images, asked, as_known, held)
