"""Routes that let the gateways verify the dataset of a run, and repair it."""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.batch_document import VERIFYING_ANSWERS
from imagefleet.producer.gateway.batches.orders_of_caller import CallerOrders, runs_of
from imagefleet.producer.gateway.batches.run_order import OrderRecord, OrderState
from imagefleet.producer.gateway.batches.run_shapes import run_body
from imagefleet.producer.gateway.datasets.verifier import Verifier
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.callers import caller_with

router: Final = APIRouter(prefix="/v1/runs", tags=["Runs"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]


@router.post("/{run_id}/verify", status_code=202, responses=VERIFYING_ANSWERS)
async def verify_run(request: Request, caller: Submitter, run_id: str) -> dict[str, Any]:
    """Check every file of an ended run against its plan. `verification` of the run shows how far
    that is, and what was found."""
    orders = runs_of(request, caller)
    record = await orders.find(run_id)
    if not record.has_ended or not record.bulk_run:
        message = (
            f"{run_id} is {record.state}; only a run that was planned and has ended is verified"
        )
        raise Problem(409, "not_ended", message)
    if record.verification is None or record.verification.has_ended:
        record = await _begin(request, orders, record, repair=False)
    return run_body(record, None)


@router.post("/{run_id}/repair", status_code=202, responses=VERIFYING_ANSWERS)
async def repair_run(request: Request, caller: Submitter, run_id: str) -> dict[str, Any]:
    """Verify a completed run, let workers make its damaged shards again, and verify it once
    more. Files that are not in the plan are not deleted."""
    orders = runs_of(request, caller)
    record = await orders.find(run_id)
    if record.state is not OrderState.COMPLETED:
        message = f"{run_id} is {record.state}; only a completed run is repaired"
        raise Problem(409, "not_completed", message)
    verification = record.verification
    if verification is None or verification.has_ended:
        record = await _begin(request, orders, record, repair=True)
    elif not verification.repair:
        message = f"{run_id} is being verified; ask for its repair once that has ended"
        raise Problem(409, "is_verified", message)
    return run_body(record, None)


async def _begin(
    request: Request, orders: CallerOrders, record: OrderRecord, *, repair: bool
) -> OrderRecord:
    verifier: Verifier = request.app.state.verifier
    begin = partial(verifier.request, record, repair=repair)
    await orders.gateway.threads.run(begin)
    return await orders.find(record.id)
