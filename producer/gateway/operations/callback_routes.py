"""Routes that list the callbacks that were given up, and send them again."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.operations.failure_shapes import callback_body
from imagefleet.producer.gateway.operations.fleet_document import CALLBACKS, REPLAYED
from imagefleet.producer.gateway.operations.fleet_routes import Operator
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.callers import gateway_of
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.webhooks.outbox_message import CallbackEntry

router: Final = APIRouter(prefix="/v1/fleet/callbacks", tags=["Fleet"])


@router.get("", responses=CALLBACKS)
async def list_callbacks(
    request: Request, caller: Operator, limit: Annotated[int, Query(ge=1, le=200)] = 100
) -> dict[str, Any]:
    """List the callbacks that were given up, by the hosts of their receivers."""
    gateway = gateway_of(request)
    entries = await gateway.threads.run(_read, gateway.client.connection, limit)
    return {"object": "list", "data": [callback_body(each) for each in entries]}


@router.post(
    "/{callback_id}/replay",
    status_code=204,
    response_class=Response,
    responses={**REPLAYED, **may_answer(409)},
)
async def replay_callback(request: Request, caller: Operator, callback_id: str) -> Response:
    """Send a callback again. Its tries count from zero."""
    gateway = gateway_of(request)
    await gateway.threads.run(_replay, gateway.client.connection, callback_id)
    return Response(status_code=204)


def _read(connection: Connection, limit: int) -> list[CallbackEntry]:
    with connection.translate_errors():
        return connection.outbox.entries(failed=True, limit=limit)


def _replay(connection: Connection, callback_id: str) -> None:
    """Replay a callback. Raises Problem, UnknownJob, BrokerUnavailable."""
    try:
        with connection.translate_errors():
            connection.outbox.replay(callback_id)
    except MessageRejected as error:  # it can never be sent
        raise Problem(409, error.code, f"the callback {callback_id!r} cannot be read") from None
