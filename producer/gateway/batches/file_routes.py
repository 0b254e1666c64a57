"""Routes of files. Clients of OpenAI and of Replicate upload to the same address, each in its form:

https://platform.openai.com/docs/api-reference/files, https://replicate.com/docs/reference/http#files
"""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.batch_output import lines_of, signed_lines
from imagefleet.producer.gateway.batches.file_document import (
    DELETE_ANSWERS,
    DOWNLOAD_ANSWERS,
    FILE_ANSWERS,
    FORM,
    LIST_ANSWERS,
    UPLOAD_ANSWERS,
)
from imagefleet.producer.gateway.batches.file_shapes import file_body, is_of_replicate, openai_file
from imagefleet.producer.gateway.batches.pages import list_body, page_of
from imagefleet.producer.gateway.batches.uploads import read_upload
from imagefleet.producer.gateway.files.stored_file import OPENAI_PREFIX, OUTPUT_PURPOSE
from imagefleet.producer.gateway.files.tenant_files import PART_BYTES
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of
from imagefleet.producer.gateway.web.held_bytes import held_bytes
from imagefleet.producer.gateway.web.limit_body import BodyLimit

PATH: Final = "/v1/files"
router: Final = APIRouter(prefix=PATH, tags=["Files"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
_FORM_BYTES: Final = 1_000_000
"""What a form has around its file at most."""
PARTS_BYTES: Final = 2 * PART_BYTES
"""A file takes this memory while it is sent: the part that is sent, and the next one."""
_SLOWER: Final = 10
"""A file may take so many times as long as another body."""
DOWNLOAD: Final = {
    "cache-control": "private, no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "content-disposition": "attachment",
}
"""No browser shows what a caller uploaded as a page of the gateway."""


def body_limit(max_file_bytes: int, timeout_s: float) -> BodyLimit:
    """Return the limit of the body of an upload.

    Args:
        timeout_s: seconds within which another body must have come.
    """
    return BodyLimit(
        max_bytes=max_file_bytes + _FORM_BYTES, timeout_s=timeout_s * _SLOWER, copies=0
    )


@router.post("", responses=UPLOAD_ANSWERS, openapi_extra=FORM)
async def upload_file(request: Request, caller: Submitter) -> Response:
    """Store a file. The answer is OpenAI's, or Replicate's if the file was in `content`."""
    gateway = gateway_of(request)
    max_bytes = gateway.settings.http_max_file_bytes
    async with read_upload(request, max_bytes, gateway.settings.http_file_keep_s) as upload:

        def save() -> Any:
            return gateway.files.save(
                caller.tenant,
                upload.content,
                id=upload.id,
                name=upload.name,
                content_type=upload.content_type,
                purpose=upload.purpose,
                metadata=upload.metadata,
                keep_s=upload.keep_s,
            )

        file = await gateway.uploads.run(save)
    status = 201 if is_of_replicate(file) else 200
    return JSONResponse(file_body(file, base_url(request)), status)


@router.get("", responses=LIST_ANSWERS)
async def list_files(
    request: Request,
    caller: Reader,
    purpose: Annotated[str, Query()] = "",
    after: Annotated[str, Query()] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
) -> dict[str, Any]:
    """List files: those uploaded as OpenAI's are `data`, those as Replicate's `results`."""
    gateway = gateway_of(request)
    files = await gateway.threads.run(gateway.files.list, caller.tenant)
    openais = [
        file
        for file in (files if order == "desc" else reversed(files))
        if file.id.startswith(OPENAI_PREFIX) and purpose in ("", file.purpose)
    ]
    page, has_more = page_of(openais, "file", after, limit)
    results = [file_body(file, base_url(request)) for file in files if is_of_replicate(file)]
    body = list_body([openai_file(file) for file in page], has_more=has_more)
    return body | {"results": results, "next": None, "previous": None}


@router.get("/{file_id}", responses=FILE_ANSWERS)
async def get_file(request: Request, caller: Reader, file_id: str) -> dict[str, Any]:
    """Describe a file."""
    gateway = gateway_of(request)
    file = await gateway.threads.run(gateway.files.find, caller.tenant, file_id)
    return file_body(file, base_url(request))


@router.get("/{file_id}/content", response_class=Response, responses=DOWNLOAD_ANSWERS)
async def get_content(request: Request, caller: Reader, file_id: str) -> Response:
    """Return the content of a file."""
    gateway = gateway_of(request)
    file = await gateway.threads.run(gateway.files.find, caller.tenant, file_id)
    await held_bytes(request).take_for_answer(min(file.size, PARTS_BYTES))
    parts = await gateway.store_threads.run(gateway.files.parts, caller.tenant, file)
    headers = {**DOWNLOAD, "content-length": str(file.size)}
    if file.purpose == OUTPUT_PURPOSE:
        url = base_url(request)
        parts = signed_lines(lines_of(parts), lambda path: url + gateway.addresses.sign_path(path))
        headers = DOWNLOAD
    return StreamingResponse(
        gateway.store_threads.each(parts),
        media_type="application/octet-stream",
        headers=headers,
    )


@router.delete("/{file_id}", responses=DELETE_ANSWERS)
async def delete_file(request: Request, caller: Submitter, file_id: str) -> Response:
    """Delete a file."""
    gateway = gateway_of(request)
    file = await gateway.threads.run(gateway.files.find, caller.tenant, file_id)
    await gateway.store_threads.run(gateway.files.delete, caller.tenant, file_id)
    if is_of_replicate(file):
        return Response(status_code=204)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})
