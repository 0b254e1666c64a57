"""Routes that show operators how the fleet is, and what is wrong with it."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request

from imagefleet.producer.fleet.conditions import conditions_of
from imagefleet.producer.fleet.recent_events import ENDS_WITHIN_S, read_recent_events
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.operations.failure_shapes import failure_body
from imagefleet.producer.gateway.operations.fleet_document import ALERTS, FAILURES, FLEET
from imagefleet.producer.gateway.operations.fleet_shapes import alert_body, fleet_body
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus

router: Final = APIRouter(prefix="/v1/fleet", tags=["Fleet"])
Operator = Annotated[Caller, Depends(caller_with(Scope.OPERATE))]


@router.get("", responses=FLEET)
async def get_fleet(request: Request, caller: Operator) -> dict[str, Any]:
    """Show the hosts, the queues, rates, and what else waits."""
    gateway = gateway_of(request)
    snapshot = await gateway.threads.run(gateway.fleet.read)
    ends = await gateway.threads.run(_ends, gateway)
    return fleet_body(snapshot, ends)


@router.get("/failures", responses=FAILURES)
async def list_failures(
    request: Request, caller: Operator, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> dict[str, Any]:
    """List the jobs that failed last, of all tenants, without their prompts."""
    failed = await gateway_of(request).threads.run(_failed, gateway_of(request), limit)
    return {"object": "list", "data": [failure_body(caller, each) for each in failed]}


@router.get("/alerts", responses=ALERTS)
async def list_alerts(request: Request, caller: Operator) -> dict[str, Any]:
    """Say in words what is wrong now, by the thresholds of the alert rules."""
    gateway = gateway_of(request)
    snapshot = await gateway.threads.run(gateway.fleet.read)
    recent = await gateway.threads.run(read_recent_events, gateway.client.connection)
    found = conditions_of(snapshot, recent)
    return {"object": "list", "data": [alert_body(each) for each in found]}


def _ends(gateway: Gateway) -> dict[str, int]:
    connection = gateway.client.connection
    with connection.translate_errors():
        return connection.recent_ends.counts(ENDS_WITHIN_S)


def _failed(gateway: Gateway, limit: int) -> list[JobStatus]:
    """Return jobs that failed. One that was redriven or deleted since is left out."""
    connection = gateway.client.connection
    with connection.translate_errors():
        job_ids = connection.recent_ends.failed(limit)
    return [
        each
        for each in connection.read_statuses(job_ids)
        if isinstance(each, JobStatus) and each.state is State.FAILED
    ]
