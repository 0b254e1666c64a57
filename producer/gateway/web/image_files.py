"""The route under which images are read: with a key, or by a signed address."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.jobs.images import CONTENT_TYPES
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.producer.gateway.web.held_bytes import held_bytes
from imagefleet.shared.jobs.result import ImageResult

router: Final = APIRouter(prefix="/v1/images", tags=["Images"])
_find_reader: Final = caller_with(Scope.READ)
_NO_RIGHT: Final = (401, 403, 404)
"""With such an answer a caller may not read an image."""
_FILE: Final = {"schema": {"type": "string", "format": "binary"}}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The file.",
        "content": dict.fromkeys(CONTENT_TYPES.values(), _FILE),
    },
    304: {"description": "The client has the file, whose ETag it sent."},
    **may_answer(401, 403, 410, 429, 500, 503),
}


@router.head("/{job_id}/{file}", include_in_schema=False)
@router.get(
    "/{job_id}/{file}", operation_id="get_image", response_class=Response, responses=_ANSWERS
)
async def get_image(
    request: Request,
    job_id: str,
    file: str,
    expires: Annotated[str, Query()] = "",
    signature: Annotated[str, Query()] = "",
) -> Response:
    """Return the file of an image."""
    image = await _find(request, job_id, file, expires, signature)
    headers = {
        "cache-control": "private, max-age=3600, immutable",
        "content-security-policy": "default-src 'none'; sandbox",
        "content-disposition": f'inline; filename="{image.file_name}"',
        "etag": f'"{image.sha256}"',
        "vary": "authorization",
    }
    if _has_file(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    await held_bytes(request).take_for_answer(image.size)
    content = await gateway_of(request).images.read(image)
    return Response(content, media_type=CONTENT_TYPES[image.format], headers=headers)


async def _find(
    request: Request, job_id: str, file: str, expires: str, signature: str
) -> ImageResult:
    """Return the image of a signed address, or one that the caller may read. Raises Problem."""
    images = gateway_of(request).images
    if not signature:
        return await images.find(await _find_reader(request), job_id, file)
    try:
        return await images.find_signed(job_id, file, expires, signature)
    except Problem as wrong_signature:
        if wrong_signature.status != 403:
            raise
        try:
            return await images.find(await _find_reader(request), job_id, file)
        except Problem as problem:
            if problem.status not in _NO_RIGHT:
                raise
            raise wrong_signature from None


def _has_file(request: Request, etag: str) -> bool:
    """Return whether the client has the file already; see RFC 9110, 13.1.2."""
    text = ",".join(request.headers.getlist("if-none-match")).strip()
    return text == "*" or etag in (each.strip().removeprefix("W/") for each in text.split(","))
