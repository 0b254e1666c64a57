"""Routes of the options. The only one that can be set is the caller's model."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.producer.gateway.web.bodies import read_json
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.offered_models import offered_models
from imagefleet.producer.gateway.webui.chosen_model import choose_model, chosen_model
from imagefleet.producer.gateway.webui.document import options_body

router: Final = APIRouter(prefix="/sdapi/v1", tags=["AUTOMATIC1111"])
AnyCaller = Annotated[Caller, Depends(caller_with(None))]
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
_MODEL: Final = "sd_model_checkpoint"
_FIXED: Final[Mapping[str, Any]] = {
    "sd_vae": "Automatic",
    "CLIP_stop_at_last_layers": 1,
    "samples_format": "png",
}


@router.get("/options")
async def get_options(request: Request, caller: AnyCaller) -> dict[str, Any]:
    """Return the caller's model, and what holds for requests without `override_settings`."""
    return {_MODEL: await current_model(gateway_of(request), caller), **_FIXED}


@router.post("/options", openapi_extra=options_body())
async def set_options(request: Request, caller: Submitter) -> None:
    """Set the model for requests of this key. Other options must be as `GET` returns them."""
    options = await read_json(request)
    for name, value in options.items():
        if name != _MODEL and value != _FIXED.get(name, object()):
            limit = "cannot be set for all requests; send it in override_settings"
            raise wrong_field(name, value, limit)
    if _MODEL in options:
        await _set_model(gateway_of(request), caller, options[_MODEL])


async def current_model(gateway: Gateway, caller: Caller) -> str:
    """Return the model of requests that name none; '' before the first worker was ready."""
    chosen = await chosen_model(gateway, caller)
    return chosen or next(iter(await offered_models(gateway)), "")


async def _set_model(gateway: Gateway, caller: Caller, model: object) -> None:
    models = await offered_models(gateway)
    if not isinstance(model, str) or model not in models:
        limit = f"must be one of {', '.join(models)}; GET /sdapi/v1/sd-models lists them"
        raise wrong_field(_MODEL, model, limit)
    await choose_model(gateway, caller, model)
