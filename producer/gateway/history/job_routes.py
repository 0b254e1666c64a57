"""Routes that list, search, show and star the jobs of the caller's tenant, however they came."""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.history.job_shapes import JobShapes
from imagefleet.producer.gateway.history.jobs_document import LISTED, SHOWN, STARRED
from imagefleet.producer.gateway.jobs.search import FoundJobs
from imagefleet.producer.gateway.jobs.timeline import EVER, MICROSECONDS, Cursor, Span
from imagefleet.producer.gateway.jobs.wanted_jobs import WantedJobs
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.parameter_types import MAX_SEED

router: Final = APIRouter(prefix="/v1/jobs", tags=["Jobs"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
_LAST_S: Final = EVER.newest // MICROSECONDS
_MAX_NAME: Final = 200
_MAX_TEXT: Final = 1_000


class JobsQuery(BaseModel):
    """A list of jobs may be asked for with these parameters."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=50, ge=1, le=100)
    cursor: str | None = Field(default=None, description="`next` or `previous` of a page.")
    state: State | None = None
    model: str | None = Field(
        default=None, max_length=_MAX_NAME, description="The jobs named it, or were made by it."
    )
    lora: str | None = Field(default=None, max_length=_MAX_NAME)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    prompt: str | None = Field(
        default=None,
        max_length=_MAX_TEXT,
        description="A part of the prompt, in capital or small letters.",
    )
    since: float | None = Field(
        default=None,
        alias="from",
        ge=0,
        le=_LAST_S,
        allow_inf_nan=False,
        description="Unix seconds; earlier ones are left out.",
    )
    until: float | None = Field(
        default=None,
        alias="to",
        ge=0,
        le=_LAST_S,
        allow_inf_nan=False,
        description="Unix seconds; later ones are left out.",
    )
    starred: bool | None = None

    def wanted(self) -> WantedJobs:
        """Return what the search finds."""
        until = EVER.newest if self.until is None else int(self.until * MICROSECONDS)
        span = Span(oldest=int((self.since or 0) * MICROSECONDS), newest=until)
        return WantedJobs(
            state=self.state,
            model=self.model or None,
            lora=self.lora or None,
            seed=self.seed,
            prompt=self.prompt or None,
            starred=self.starred,
            span=span,
        )


@router.get("", responses=LISTED)
async def list_jobs(
    request: Request, caller: Reader, asked: Annotated[JobsQuery, Query()]
) -> JSONResponse:
    """List the jobs that the tenant has submitted over HTTP, the newest first. Of several filters
    all hold. A search ends after some milliseconds, and goes on at `next`."""
    gateway, wanted = gateway_of(request), asked.wanted()
    cursor = None if asked.cursor is None else Cursor.parse(asked.cursor)
    if wanted.model is not None:
        model = gateway.settings.model_aliases.get(wanted.model, wanted.model)
        wanted = replace(wanted, model=model)
    found = await gateway.searches.run(gateway.search.page, caller, cursor, asked.limit, wanted)
    shapes = JobShapes(gateway=gateway, caller=caller, base_url=base_url(request))
    return JSONResponse(_page(shapes, found))


@router.get("/{job_id}", responses=SHOWN)
async def get_job(request: Request, caller: Reader, job_id: str) -> JSONResponse:
    """Show a job with all parameters that its images were made with."""
    gateway = gateway_of(request)
    status = await gateway.jobs.status(caller, job_id)
    starred = await gateway.threads.run(gateway.stars.among, caller.tenant, [status.id])
    metadata = await gateway.images.metadata(status)
    shapes = JobShapes(gateway=gateway, caller=caller, base_url=base_url(request))
    shown = shapes.job(status, starred=status.id in starred, metadata=metadata)
    return JSONResponse({**shown, "preview": status.preview})


@router.put("/{job_id}/star", status_code=204, response_class=Response, responses=STARRED)
async def star_job(request: Request, caller: Submitter, job_id: str) -> Response:
    """Star a job, to find it again. The star is kept as long as its record."""
    gateway = gateway_of(request)
    status = await gateway.jobs.status(caller, job_id)
    await gateway.threads.run(gateway.stars.set, caller.tenant, status)
    return Response(status_code=204)


@router.delete("/{job_id}/star", status_code=204, response_class=Response, responses=STARRED)
async def unstar_job(request: Request, caller: Submitter, job_id: str) -> Response:
    """Remove the star of a job; if it has none, that is no error."""
    gateway = gateway_of(request)
    status = await gateway.jobs.status(caller, job_id)
    await gateway.threads.run(gateway.stars.remove, caller.tenant, [status.id])
    return Response(status_code=204)


def _page(shapes: JobShapes, found: FoundJobs) -> dict[str, Any]:
    until = found.searched_until
    return {
        "object": "list",
        "data": [shapes.job(each, starred=each.id in found.starred) for each in found.statuses],
        "next": None if found.next is None else str(found.next),
        "previous": None if found.previous is None else str(found.previous),
        "searched_until": None if until is None else until / MICROSECONDS,
        "complete": found.complete,
    }
