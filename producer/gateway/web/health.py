"""Routes for load balancers and orchestrators."""

from contextlib import suppress
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.web.callers import gateway_of
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.shared.errors import ConfigurationError, StorageDenied, StorageUnavailable

router: Final = APIRouter(tags=["Health"])
_OK: Final = "ok"
_NO_OBJECT: Final = "readyz"
"""There is no such object. A store that says so answers."""


@router.get("/healthz")
async def is_alive() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": _OK}


@router.get("/readyz", responses=may_answer(503))
async def is_ready(request: Request) -> dict[str, str]:
    """Say whether Redis answers, 503 if not, and whether the store does.

    Without the store a gateway is ready: jobs are submitted, watched and cancelled all the same.
    """
    gateway = gateway_of(request)
    await gateway.redis_probe.run(gateway.client.check)
    try:
        store = await gateway.store_probe.run(_ask_store, gateway.client.connection)
    except StorageUnavailable:
        store = "does not answer"
    return {"status": _OK, "redis": _OK, "store": store}


def _ask_store(connection: Connection) -> str:
    """Return what is known of the store of the default model. Raises StorageUnavailable."""
    try:
        with suppress(StorageDenied):  # S3 hides what is missing from who may not list
            connection.store().exists(_NO_OBJECT)
    except ConfigurationError:  # no worker has announced one, or this host has no credentials
        return "unknown"
    return _OK
