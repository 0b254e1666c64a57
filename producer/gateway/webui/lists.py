"""Routes that list what requests may name: models, samplers, noise levels and LoRA."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.offered_models import offered_models
from imagefleet.producer.gateway.webui.options import current_model
from imagefleet.shared.jobs.foreign_names import SAMPLER_NAMES
from imagefleet.shared.jobs.offers import Offer

router: Final = APIRouter(prefix="/sdapi/v1", tags=["AUTOMATIC1111"])
AnyCaller = Annotated[Caller, Depends(caller_with(None))]
_SHORT_HASH_DIGITS: Final = 10


@router.get("/sd-models")
async def list_models(request: Request, caller: AnyCaller) -> list[dict[str, Any]]:
    """List the models that workers offer, and the other names that the operator gave them."""
    models = await offered_models(gateway_of(request))
    return [_model(name, offer.digest) for name, offer in models.items()]


@router.get("/samplers")
async def list_samplers(request: Request, caller: AnyCaller) -> list[dict[str, Any]]:
    """List the schedulers of the caller's model, by the web UI's names where they have one."""
    offer = await _offer(request, caller)
    return [
        {"name": SAMPLER_NAMES.get(each, each), "aliases": [each], "options": {}}
        for each in (offer.schedulers if offer is not None else ())
    ]


@router.get("/schedulers")
async def list_schedulers(request: Request, caller: AnyCaller) -> list[dict[str, Any]]:
    """List the noise levels, which the web UI separates from the samplers."""
    offer = await _offer(request, caller)
    has_karras = any(each.endswith("_karras") for each in (offer.schedulers if offer else ()))
    names = ["automatic", *(["karras"] if has_karras else [])]
    return [
        {
            "name": each,
            "label": each.title(),
            "aliases": None,
            "default_rho": -1.0,
            "need_inner_model": False,
        }
        for each in names
    ]


@router.get("/loras")
async def list_loras(request: Request, caller: AnyCaller) -> list[dict[str, Any]]:
    """List the LoRA that jobs of the caller's model may use, as in `<lora:style:0.8>`."""
    offer = await _offer(request, caller)
    return [
        {"name": name, "alias": name, "path": name, "metadata": {"sha256": _hex(digest)}}
        for name, digest in sorted(offer.loras.items() if offer is not None else ())
    ]


@router.get("/sd-vae")
async def list_vaes(caller: AnyCaller) -> list[dict[str, Any]]:
    """Return an empty list: each model has its own VAE."""
    return []


@router.get("/upscalers")
async def list_upscalers(caller: AnyCaller) -> list[dict[str, Any]]:
    """Return only the web UI's `None`: images are not enlarged here."""
    return [{"name": "None", "model_name": None, "model_path": None, "model_url": None, "scale": 4}]


@router.get("/latent-upscale-modes")
async def list_latent_upscale_modes(caller: AnyCaller) -> list[dict[str, Any]]:
    """Return an empty list: images are not enlarged here."""
    return []


async def _offer(request: Request, caller: Caller) -> Offer | None:
    gateway = gateway_of(request)
    models = await offered_models(gateway)
    return models.get(await current_model(gateway, caller))


def _model(name: str, digest: str) -> dict[str, Any]:
    sha256 = _hex(digest)
    return {
        "title": name,
        "model_name": name,
        "hash": sha256[:_SHORT_HASH_DIGITS],
        "sha256": sha256,
        "filename": name,
        "config": None,
    }


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
