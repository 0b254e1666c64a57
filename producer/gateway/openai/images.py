"""Routes of the OpenAI Images API: https://platform.openai.com/docs/api-reference/images."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.jobs.caller_images import decode_data_url
from imagefleet.producer.gateway.jobs.masks import check_proportions, transparent_part
from imagefleet.producer.gateway.jobs.repeats import RequestJob
from imagefleet.producer.gateway.openai.edit_images import read_edit
from imagefleet.producer.gateway.openai.field_names import in_openai_names
from imagefleet.producer.gateway.openai.images_document import (
    ANSWERS,
    edits_body,
    images_body,
)
from imagefleet.producer.gateway.openai.images_request import ImagesRequest
from imagefleet.producer.gateway.openai.images_response import ImagesAnswer, last_event
from imagefleet.producer.gateway.web.bodies import off_loop, read_json
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of
from imagefleet.producer.gateway.web.connected import while_connected
from imagefleet.producer.gateway.web.events import event_stream
from imagefleet.producer.gateway.web.held_bytes import held_bytes
from imagefleet.producer.gateway.web.image_json import image_json
from imagefleet.producer.gateway.web.long_texts import digest_of
from imagefleet.producer.gateway.web.refused_tries import submitting
from imagefleet.producer.gateway.web.request_log import JOB_HEADER
from imagefleet.shared.errors import InvalidRequest, JobCancelled, JobFailed
from imagefleet.shared.jobs.queues import DEFAULT_MODEL

router: Final = APIRouter(prefix="/v1/images", tags=["OpenAI Images"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]


@router.options("/generations", status_code=204)
async def show_methods() -> Response:
    """Say that images can be made here, as a client asks before its first request. No web page of
    another origin may read this: there are no headers of CORS."""
    return Response(status_code=204, headers={"allow": "OPTIONS, POST"})


@router.post("/generations", responses=ANSWERS, openapi_extra=images_body())
async def create_image(request: Request, caller: Submitter) -> Response:
    """Generate images of a prompt, and answer when they are there."""
    order = await _submit(request, caller, "image_generation", await read_json(request), {})
    return await _answer(request, caller, order)


@router.post("/edits", responses=ANSWERS, openapi_extra=edits_body())
async def edit_image(request: Request, caller: Submitter) -> Response:
    """Generate images that start from an image. With a mask only its transparent part changes."""
    order = await _submit(request, caller, "image_edit", *await read_edit(request))
    return await _answer(request, caller, order)


@dataclass(frozen=True, kw_only=True)
class _Order:
    """A job that was submitted, and how it is answered. It holds nothing of the body."""

    job: RequestJob
    answer: ImagesAnswer
    streams: bool


async def _submit(
    request: Request,
    caller: Caller,
    kind: str,
    fields: Mapping[str, Any],
    images: dict[str, str | bytes],
) -> _Order:
    gateway = gateway_of(request)
    asked = ImagesRequest.parse(fields)
    parameters = asked.parameters(gateway.settings.model_aliases)
    content = await off_loop(request, _digest, fields, images)
    if "mask_image" in images:
        images["mask_image"] = await _mask(gateway, caller, images)
    job = await gateway.repeats.job_of(caller, request.url.path, content, request.headers)
    try:
        with submitting(request, job=job.name):
            await gateway.jobs.submit(caller, {**parameters, **images}, name=job.name)
    except InvalidRequest as error:
        offers = await gateway.threads.run(gateway.client.offers)
        offer = offers.get(str(parameters.get("model") or DEFAULT_MODEL))
        sent = {**fields, "mask": images.get("mask_image")}
        raise in_openai_names(error, sent, offer) from None
    held_bytes(request).release()
    answer = ImagesAnswer(
        images=gateway.images,
        name=job.name,
        base_url=base_url(request),
        as_urls=asked.response_format == "url",
        kind=kind,
        partial_images=asked.partial_images or 0,
        held=held_bytes(request),
    )
    return _Order(job=job, answer=answer, streams=bool(asked.stream))


async def _mask(gateway: Gateway, caller: Caller, images: dict[str, str | bytes]) -> bytes:
    """Return the mask of an edit as a job takes it: its transparent part is white.

    Raises Problem.
    """
    image, mask = images["image"], images["mask_image"]
    if isinstance(mask, str):
        mask = await gateway.store_threads.run(gateway.inputs.read_file, caller, "mask", mask)
    if isinstance(image, str) and image.startswith("data:"):
        image = images["image"] = await gateway.decoding.run(decode_data_url, "images", image)
    if isinstance(image, bytes):
        await gateway.decoding.run(check_proportions, image, mask)
    return await gateway.decoding.run(transparent_part, mask)


async def _answer(request: Request, caller: Caller, order: _Order) -> Response:
    gateway, job, answer = gateway_of(request), order.job, order.answer
    if order.streams:
        return event_stream(_stream(gateway, caller, job, answer), last_event)
    body = await while_connected(request, _wait(gateway, caller, job, answer))
    return image_json(body, {JOB_HEADER: job.name})


async def _wait(
    gateway: Gateway, caller: Caller, job: RequestJob, answer: ImagesAnswer
) -> dict[str, Any]:
    status = await gateway.jobs.wait(caller, job.name, gateway.settings.http_wait_s)
    async with _answered(gateway, job):
        return await answer.body(status)


async def _stream(
    gateway: Gateway, caller: Caller, job: RequestJob, answer: ImagesAnswer
) -> AsyncGenerator[str]:
    async with _answered(gateway, job), gateway.jobs.watch_submitted(caller, job.name) as statuses:
        async for text in answer.events(statuses):
            yield text


@asynccontextmanager
async def _answered(gateway: Gateway, job: RequestJob) -> AsyncIterator[None]:
    """Note that a request was answered: with images, or with the failure of its job."""
    try:
        yield
    except (JobFailed, JobCancelled):
        await gateway.repeats.answered(job)
        raise
    await gateway.repeats.answered(job)


def _digest(fields: Mapping[str, Any], images: Mapping[str, str | bytes]) -> bytes:
    """Return what is equal for equal requests. The text of a form differs in its boundaries."""
    digest = hashlib.sha256(digest_of(fields))
    for name, image in sorted(images.items()):
        own = digest_of(image) if isinstance(image, str) else hashlib.sha256(image).digest()
        digest.update(f"\n{name}\n".encode() + own)
    return digest.digest()
