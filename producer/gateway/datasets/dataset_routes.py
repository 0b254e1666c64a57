"""Routes that look into the dataset of a run: rejected rows, and some of its images."""

from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.file_routes import DOWNLOAD
from imagefleet.producer.gateway.batches.orders_of_caller import (
    CallerOrders,
    keeper_of,
    runs_of,
)
from imagefleet.producer.gateway.batches.run_access import readable_run
from imagefleet.producer.gateway.datasets.dataset_document import (
    IMAGE_ANSWERS,
    REJECTED_ANSWERS,
    SAMPLE_ANSWERS,
)
from imagefleet.producer.gateway.datasets.run_samples import (
    ShownSample,
    list_samples,
    read_sample,
)
from imagefleet.producer.gateway.jobs.images import CONTENT_TYPES
from imagefleet.producer.gateway.problems import unknown
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of

router: Final = APIRouter(prefix="/v1/runs", tags=["Runs"])
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
_IMAGE_PATH: Final = "/v1/runs/{run_id}/images/{shard}/{key}"


@router.get("/{run_id}/rejected", responses=REJECTED_ANSWERS)
async def list_rejected(
    request: Request,
    caller: Reader,
    run_id: str,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000_000)] = 0,
) -> JSONResponse:
    """List the rows that could not be planned, with the reasons."""
    orders = runs_of(request, caller)
    run = await _open(orders, run_id)
    rows = await orders.gateway.store_threads.run(_rejected, run, offset, limit + 1)
    return JSONResponse(
        {
            "object": "list",
            "data": rows[:limit],
            "total": run.plan.rejected,
            "has_more": len(rows) > limit,
        }
    )


@router.get("/{run_id}/sample", responses=SAMPLE_ANSWERS)
async def show_sample(
    request: Request,
    caller: Reader,
    run_id: str,
    count: Annotated[int, Query(ge=1, le=48)] = 12,
) -> JSONResponse:
    """Show some images from all over the run, also while it runs."""
    orders = runs_of(request, caller)
    run = await _open(orders, run_id)
    found = await orders.gateway.store_threads.run(list_samples, run, count)
    sign, base = orders.gateway.addresses.sign_path, base_url(request)

    def body(sample: ShownSample) -> dict[str, Any]:
        path = _IMAGE_PATH.format(run_id=run_id, shard=sample.shard, key=sample.key)
        url = base + sign(path)
        return {"key": sample.key, "shard": sample.shard, "url": url, **sample.document}

    return JSONResponse({"object": "list", "data": [body(each) for each in found]})


@router.get("/{run_id}/images/{shard}/{key}", response_class=Response, responses=IMAGE_ANSWERS)
async def get_run_image(
    request: Request,
    run_id: str,
    shard: str,
    key: str,
    expires: Annotated[str, Query()] = "",
    signature: Annotated[str, Query()] = "",
) -> Response:
    """Return one image of a sample: with a key, or by a signed address."""
    gateway, keeper = gateway_of(request), keeper_of(request)
    path = _IMAGE_PATH.format(run_id=run_id, shard=shard, key=key)
    record = await readable_run(request, run_id, path, expires, signature)
    run = await gateway.store_threads.run(keeper.places.open, record)
    try:
        content = await gateway.store_threads.run(read_sample, run, shard, key)
    except KeyError:
        raise unknown("image", key) from None
    media_type = CONTENT_TYPES[run.plan.image_format]
    disposition = {"content-disposition": f'inline; filename="{run_id}-{key}"'}
    headers = {**DOWNLOAD, **disposition, "vary": "authorization"}
    return Response(content, media_type=media_type, headers=headers)


async def _open(orders: CallerOrders, run_id: str) -> BulkRun:
    """Return a planned run of the caller. Raises Problem (404, 409)."""
    record = await orders.find(run_id)
    return await orders.gateway.store_threads.run(orders.keeper.places.open, record)


def _rejected(run: BulkRun, offset: int, count: int) -> list[dict[str, object]]:
    return list(islice(run.rejected(), offset, offset + count))
