"""Routes that show and interrupt the caller's jobs of this API."""

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.jobs.tenant_jobs import name_of
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.webui.open_jobs import OpenJobs
from imagefleet.shared.errors import UnreadableRecord
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus

router: Final = APIRouter(prefix="/sdapi/v1", tags=["AUTOMATIC1111"])
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]


@router.get("/progress")
async def get_progress(
    request: Request, caller: Reader, skip_current_image: bool = False
) -> dict[str, Any]:
    """Return how far the oldest running job is. A job shows an image if it has `preview`."""
    jobs = await OpenJobs(gateway_of(request), caller).statuses()
    running = next((each for each in jobs if each.state == State.RUNNING), None)
    current = running or next(iter(jobs), None)
    share = 0.0 if current is None else _share(current)
    preview = None if current is None or skip_current_image else current.preview
    return {
        "progress": share,
        "eta_relative": 0.0 if current is None else _seconds_left(current, share),
        "state": {
            "skipped": False,
            "interrupted": False,
            "job": "" if current is None else name_of(caller, current),
            "job_count": len(jobs),
            "job_timestamp": "" if current is None else _timestamp(current.submitted_at),
            "job_no": 0,
            "sampling_step": 0 if current is None else current.step,
            "sampling_steps": 0 if current is None else current.steps,
        },
        "current_image": preview.partition(",")[2] if preview else None,
        "textinfo": None if current is None else str(current.state),
    }


@router.post("/interrupt")
async def interrupt(request: Request, caller: Submitter) -> dict[str, Any]:
    """Cancel the jobs that the caller's requests wait for, running ones between two steps."""
    gateway = gateway_of(request)
    for status in await OpenJobs(gateway, caller).statuses():
        try:
            await gateway.jobs.cancel(caller, name_of(caller, status))
        except (Problem, UnreadableRecord):  # it was deleted meanwhile
            continue
    return {}


def _share(status: JobStatus) -> float:
    return min(1.0, status.step / status.steps) if status.steps else 0.0


def _seconds_left(status: JobStatus, share: float) -> float:
    if status.started_at is None or not share:
        return 0.0
    return max(0.0, (time.time() - status.started_at) * (1 - share) / share)


def _timestamp(seconds: float) -> str:
    """Return a time as the web UI writes it."""
    return time.strftime("%Y%m%d%H%M%S", time.gmtime(seconds))
