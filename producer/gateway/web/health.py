"""Routes for load balancers and orchestrators."""

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request

from imagefleet.producer.gateway.web.callers import gateway_of
from imagefleet.producer.gateway.web.document import may_answer

router: Final = APIRouter(tags=["Health"])


@router.get("/healthz")
async def is_alive() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=may_answer(503))
async def is_ready(request: Request) -> dict[str, str]:
    """Say whether Redis answers; 503 if not."""
    gateway = gateway_of(request)
    await gateway.threads.run(gateway.client.check)
    return {"status": "ok"}
