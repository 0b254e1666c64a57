"""Routes of OpenAI's batches: https://platform.openai.com/docs/api-reference/batch."""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.batch_document import (
    BATCH_ANSWERS,
    BATCHES_ANSWERS,
    CANCEL_ANSWERS,
    CREATE_ANSWERS,
    batch_body_schema,
)
from imagefleet.producer.gateway.batches.batch_request import BatchRequest, batch_order
from imagefleet.producer.gateway.batches.batch_shapes import batch_body
from imagefleet.producer.gateway.batches.orders_of_caller import CallerOrders
from imagefleet.producer.gateway.batches.pages import list_body, page_of
from imagefleet.producer.gateway.batches.run_order import BATCH_PREFIX, OrderRecord, RunOrder
from imagefleet.producer.gateway.problems import unknown, wrong_field
from imagefleet.producer.gateway.web.bodies import check_fields, read_json
from imagefleet.producer.gateway.web.callers import caller_with

router: Final = APIRouter(prefix="/v1/batches", tags=["Batches"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
_of = partial(CallerOrders.of, what="batch")


@router.post("", responses=CREATE_ANSWERS, openapi_extra=batch_body_schema())
async def create_batch(request: Request, caller: Submitter) -> dict[str, Any]:
    """Make the images of all requests in a file. It is answered at once."""
    fields, orders = await read_json(request), _of(request, caller)
    asked = check_fields(BatchRequest, fields)
    gateway = orders.gateway

    def order_of(name: str) -> RunOrder:
        order = batch_order(asked, caller, BATCH_PREFIX + name, gateway.settings.http_file_keep_s)
        file = gateway.files.find(caller.tenant, asked.input_file_id)
        if file.purpose != "batch":
            limit = "must be a file that was uploaded with the purpose batch"
            raise wrong_field("input_file_id", file.id, limit)
        return order

    return await _body(orders, await orders.create(request, fields, order_of))


@router.get("", responses=BATCHES_ANSWERS)
async def list_batches(
    request: Request,
    caller: Reader,
    after: Annotated[str, Query()] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """List batches, the newest first."""
    orders = _of(request, caller)
    page, has_more = page_of(await orders.list(), "batch", after, limit)
    return list_body([await _body(orders, record) for record in page], has_more=has_more)


@router.get("/{batch_id}", responses=BATCH_ANSWERS)
async def get_batch(request: Request, caller: Reader, batch_id: str) -> dict[str, Any]:
    """Describe a batch."""
    orders = _of(request, caller)
    return await _body(orders, _batch(await orders.find(batch_id)))


@router.post("/{batch_id}/cancel", responses=CANCEL_ANSWERS)
async def cancel_batch(request: Request, caller: Submitter, batch_id: str) -> dict[str, Any]:
    """Stop a batch. Its output has the images that are there."""
    orders = _of(request, caller)
    _batch(await orders.find(batch_id))
    return await _body(orders, await orders.cancel(batch_id))


async def _body(orders: CallerOrders, record: OrderRecord) -> dict[str, Any]:
    return batch_body(record, await orders.run_status(record))


def _batch(record: OrderRecord) -> OrderRecord:
    if not record.order.is_batch:
        raise unknown("batch", record.id)
    return record
