"""Routes that list dead letters, and send them through the fleet once more."""

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.fleet.redrive import redrive
from imagefleet.producer.gateway.operations.failure_shapes import dead_letter_body
from imagefleet.producer.gateway.operations.fleet_document import (
    ALL_REDRIVEN,
    DEAD_LETTERS,
    REDRIVEN,
)
from imagefleet.producer.gateway.operations.fleet_routes import Operator
from imagefleet.producer.gateway.problems import unknown
from imagefleet.producer.gateway.web.callers import gateway_of
from imagefleet.shared.errors import MessageRejected, UnknownJob
from imagefleet.shared.jobs.dead_letters import DeadLetter

router: Final = APIRouter(prefix="/v1/fleet/dead-letters", tags=["Fleet"])
_ALL_S: Final = 5.0
"""One request redrives letters for so long."""
_MAX_NOTES: Final = 100


@router.get("", responses=DEAD_LETTERS)
async def list_dead_letters(
    request: Request, caller: Operator, limit: Annotated[int, Query(ge=1, le=200)] = 100
) -> dict[str, Any]:
    """List the messages that the fleet gave up, with the reasons and without their content."""
    gateway = gateway_of(request)
    letters = await gateway.threads.run(_read, gateway.client.connection, limit)
    return {"object": "list", "data": [dead_letter_body(caller, each) for each in letters]}


@router.post("/redrive", responses=ALL_REDRIVEN)
async def redrive_all(request: Request, caller: Operator) -> dict[str, Any]:
    """Redrive all dead letters, as many as five seconds allow."""
    gateway = gateway_of(request)
    return await gateway.threads.run(_redrive_all, gateway.client.connection)


@router.post("/{letter_id}/redrive", responses=REDRIVEN)
async def redrive_one(request: Request, caller: Operator, letter_id: str) -> dict[str, Any]:
    """Send a message through the fleet once more. Its deliveries and retries count from zero."""
    gateway = gateway_of(request)
    return await gateway.threads.run(_redrive_one, gateway.client.connection, letter_id)


def _read(connection: Connection, limit: int) -> list[DeadLetter]:
    with connection.translate_errors():
        return connection.dead_letters.read(limit)


def _redrive_one(connection: Connection, letter_id: str) -> dict[str, Any]:
    with connection.translate_errors():
        letter = connection.dead_letters.find(letter_id)
        if letter is None:
            raise unknown("dead letter", letter_id)
        return _redriven(connection, letter)


def _redrive_all(connection: Connection) -> dict[str, Any]:
    ends_at = time.monotonic() + _ALL_S
    notes: list[dict[str, Any]] = []
    looked_at = 0
    with connection.translate_errors():
        ids = connection.dead_letters.ids()
        for letter_id in ids:
            if time.monotonic() > ends_at:
                break
            looked_at += 1
            if (letter := connection.dead_letters.find(letter_id)) is not None:
                notes.append(_redriven(connection, letter))
    refused = [each for each in notes if not each["redriven"]]
    return {
        "redriven": len(notes) - len(refused),
        "not_redriven": refused[:_MAX_NOTES],
        "left": len(ids) - looked_at,
    }


def _redriven(connection: Connection, letter: DeadLetter) -> dict[str, Any]:
    try:
        done, note = redrive(connection.dead_letters, letter)
    except (UnknownJob, MessageRejected) as error:  # somebody else has redriven it, or has its id
        done, note = False, str(error)
    return {"id": letter.id, "redriven": done, "note": note}
