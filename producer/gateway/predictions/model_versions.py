"""The route that describes a version of a model, which `replicate.run("owner/name:version")` asks
for before it shows the images."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.predictions.models import FleetModels
from imagefleet.producer.gateway.predictions.predictions_document import VERSION, input_schema
from imagefleet.producer.gateway.problems import unknown
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.shared.jobs.prediction import short_digest

router: Final = APIRouter(prefix="/v1/models", tags=["Predictions"])
AnyCaller = Annotated[Caller, Depends(caller_with(None))]
_COG_VERSION: Final = "0.9.0"
"""The clients read the schema as that of this version of Cog."""
_NO_TIME: Final = "1970-01-01T00:00:00Z"
"""Nobody knows when weights were made."""


@router.get("/{model:path}/versions/{version}", responses=VERSION)
async def get_version(
    request: Request, caller: AnyCaller, model: str, version: str
) -> dict[str, Any]:
    """Describe the version of a model that workers serve."""
    gateway = gateway_of(request)
    offers = await gateway.threads.run(gateway.client.offers)
    offer = FleetModels(offers=offers, aliases=gateway.settings.model_aliases).offer(model)
    if offer is None or short_digest(offer.digest) != short_digest(version):
        raise unknown("version", version)
    return {
        "id": short_digest(offer.digest),
        "created_at": _NO_TIME,
        "cog_version": _COG_VERSION,
        "openapi_schema": _schema(),
    }


def _schema() -> dict[str, Any]:
    address = {"type": "string", "format": "uri"}
    return {
        "openapi": "3.0.2",
        "info": {"title": "imagefleet", "version": "1"},
        "paths": {},
        "components": {
            "schemas": {
                "Input": input_schema(),
                "Output": {"type": "array", "items": address},
            }
        },
    }
