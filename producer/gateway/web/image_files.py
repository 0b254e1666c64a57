"""The route under which images are read: with a key, or by a signed address."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.jobs.images import CONTENT_TYPES
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.document import may_answer

router: Final = APIRouter(prefix="/v1/images", tags=["Images"])
_find_reader: Final = caller_with(Scope.READ)
_FILE: Final = {"schema": {"type": "string", "format": "binary"}}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The file.",
        "content": dict.fromkeys(CONTENT_TYPES.values(), _FILE),
    },
    304: {"description": "The client has the file, whose ETag it sent."},
    **may_answer(401, 403, 410, 429, 500, 503),
}


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
    gateway = gateway_of(request)
    if signature:
        image = await gateway.images.find_signed(job_id, file, expires, signature)
    else:
        image = await gateway.images.find(await _find_reader(request), job_id, file)
    headers = {
        "cache-control": "private, max-age=3600, immutable",
        "content-security-policy": "default-src 'none'; sandbox",
        "content-disposition": f'inline; filename="{image.file_name}"',
        "etag": f'"{image.sha256}"',
        "vary": "authorization",
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    content = await gateway.images.read(image)
    return Response(content, media_type=CONTENT_TYPES[image.format], headers=headers)
