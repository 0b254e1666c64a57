"""The route that tells a receiver of webhooks with which secret they are signed."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.predictions.predictions_document import SECRET
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of

router: Final = APIRouter(prefix="/v1/webhooks", tags=["Predictions"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]


@router.get("/default/secret", responses=SECRET)
async def get_webhook_secret(request: Request, caller: Submitter) -> dict[str, str]:
    """Return the newest secret that signs the webhooks of the caller's tenant.

    The fleet's own signs those of all tenants without one, so only operators read it: whoever knows
    a secret can sign with it.
    """
    secrets = gateway_of(request).webhook_secrets
    own = secrets.by_tenant.get(caller.tenant or "", ())
    if not own and caller.may(Scope.OPERATE):
        own = secrets.fleet
    if not own:
        message = (
            "the tenant of this key has no secret of its own for webhooks; set "
            "IMAGEFLEET_WEBHOOK_TENANT_SECRETS at the gateways and the workers"
        )
        raise Problem(404, "not_found", message)
    return {"key": own[-1]}
