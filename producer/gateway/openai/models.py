"""Routes that list models: https://platform.openai.com/docs/api-reference/models."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.openai.models_document import MODEL_ANSWERS, MODELS_ANSWERS
from imagefleet.producer.gateway.problems import unknown
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.offered_models import offered_models
from imagefleet.shared.jobs.offers import Offer

router: Final = APIRouter(prefix="/v1/models", tags=["Models"])
AnyCaller = Annotated[Caller, Depends(caller_with(None))]


@router.get("", responses=MODELS_ANSWERS)
async def list_models(request: Request, caller: AnyCaller) -> dict[str, Any]:
    """List the models that workers offer, and the other names that the operator gave them."""
    models = await offered_models(gateway_of(request))
    return {"object": "list", "data": [_shown(name, each) for name, each in models.items()]}


@router.get("/{name:path}", responses=MODEL_ANSWERS)
async def get_model(request: Request, caller: AnyCaller, name: str) -> dict[str, Any]:
    """Describe one model: its shapes, schedulers, LoRA, ControlNets and limits."""
    models = await offered_models(gateway_of(request))
    if name not in models:
        raise unknown("model", name)
    return _shown(name, models[name])


def _shown(name: str, offer: Offer) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "imagefleet",
        "digest": offer.digest,
        "license": offer.model_license,
        "sizes": [f"{width}x{height}" for height, width in offer.shapes],
        "schedulers": list(offer.schedulers),
        "loras": sorted(offer.loras),
        "controlnets": sorted(offer.controlnets),
        "scheduler": offer.scheduler,
        "num_inference_steps": offer.num_inference_steps,
        "max_num_inference_steps": offer.max_num_inference_steps,
        "guidance_scale": offer.guidance_scale,
    }
