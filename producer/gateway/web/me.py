"""The route that tells a caller who it is, and what it may do."""

from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.web.callers import caller_with, gateway_of
from imagefleet.producer.gateway.web.schemas import (
    COUNT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Answers,
    array_of,
    in_json,
    object_of,
)

router: Final = APIRouter(prefix="/v1", tags=["Keys"])
AnyCaller = Annotated[Caller, Depends(caller_with(None))]
_LIMITS: Final = object_of(
    {
        "priority": {"type": "integer", "description": "The highest of its jobs."},
        "per_minute": {**COUNT_OR_NULL, "description": "Requests. Null: no limit."},
        "images_per_day": {**COUNT_OR_NULL, "description": "Null: no limit."},
        "images_today": {
            **COUNT_OR_NULL,
            "description": "Images that were ordered in this UTC day. Null: no limit, so nobody "
            "counts.",
        },
    }
)
_ME: Final = object_of(
    {
        "tenant": {**TEXT_OR_NULL, "description": "Null: what each job names."},
        "name": {**TEXT, "description": "Of the key."},
        "scopes": array_of({"enum": list(Scope)}),
        "key": {**TEXT_OR_NULL, "description": "The id of the key. Null: none was asked for."},
        "limits": _LIMITS,
        "retention_s": {
            "type": "integer",
            "description": "Seconds for which a job is shown after its end.",
        },
        "version": {**TEXT, "description": "Of the gateway."},
    },
    title="Me",
)
_ANSWERS: Final[Answers] = {200: in_json("The caller.", _ME)}


@router.get("/me", responses=_ANSWERS)
async def get_me(request: Request, caller: AnyCaller) -> dict[str, Any]:
    """Say whose key this is, what it may do, and how much of its quota is used."""
    gateway = gateway_of(request)
    return {
        "tenant": caller.tenant,
        "name": caller.name,
        "scopes": [scope for scope in Scope if caller.may(scope)],
        "key": caller.key_id,
        "limits": {
            "priority": caller.max_priority,
            "per_minute": caller.per_minute,
            "images_per_day": caller.images_per_day,
            "images_today": await gateway.threads.run(gateway.quota.used, caller),
        },
        "retention_s": gateway.settings.retention_s,
        "version": version("imagefleet"),
    }
