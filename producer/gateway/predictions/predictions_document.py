"""Describe the routes of predictions in the OpenAPI document: bodies and answers."""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.gateway.jobs.parameter_schemas import parameter_schemas, without_references
from imagefleet.producer.gateway.predictions.prediction_request import (
    INPUT_NAMES,
    THEIR_NAMES,
    PredictionRequest,
)
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.producer.gateway.web.schemas import (
    TEXT,
    TEXT_OR_NULL,
)
from imagefleet.shared.jobs.prediction import PREDICTION_STATES

_DATE_OR_NULL: Final = {"type": ["string", "null"], "format": "date-time"}
_SECONDS: Final = {"type": "number", "description": "Seconds."}
PREDICTION: Final = {
    "title": "Prediction",
    "type": "object",
    "properties": {
        "id": TEXT,
        "model": {**TEXT, "description": "As owner/name."},
        "version": {**TEXT, "description": "The digest of the weights once they were used."},
        "input": {"type": "object"},
        "output": {
            "type": ["array", "null"],
            "items": TEXT,
            "description": "Addresses of the images, which open for a while without a key.",
        },
        "logs": TEXT,
        "error": TEXT_OR_NULL,
        "status": {"enum": sorted(PREDICTION_STATES.values())},
        "created_at": _DATE_OR_NULL,
        "started_at": _DATE_OR_NULL,
        "completed_at": _DATE_OR_NULL,
        "data_removed": {"type": "boolean"},
        "metrics": {
            "type": "object",
            "properties": {"total_time": _SECONDS, "predict_time": _SECONDS},
        },
        "urls": {"type": "object", "additionalProperties": TEXT},
        "webhook": TEXT,
        "webhook_events_filter": {"type": "array", "items": TEXT},
    },
    "required": ["id", "model", "version", "input", "status", "created_at", "urls"],
}
_PAGE: Final = {
    "title": "Predictions",
    "type": "object",
    "properties": {
        "previous": {**TEXT_OR_NULL, "description": "Where newer predictions are."},
        "next": {**TEXT_OR_NULL, "description": "Where older predictions are."},
        "results": {"type": "array", "items": PREDICTION},
    },
    "required": ["previous", "next", "results"],
}
_VERSION: Final = {
    "title": "ModelVersion",
    "type": "object",
    "properties": {
        "id": {**TEXT, "description": "The digest of the weights."},
        "created_at": {**TEXT, "format": "date-time"},
        "cog_version": TEXT,
        "openapi_schema": {"type": "object"},
    },
    "required": ["id", "created_at", "cog_version", "openapi_schema"],
}
_EVENT: Final = {
    "title": "PredictionEvent",
    "type": "object",
    "properties": {"id": TEXT, "event": TEXT, "data": TEXT},
    "required": ["id", "event", "data"],
}
"""Of each event, as validators of server-sent events read it."""
_HEADERS: Final = {
    "Prefer": (
        "`wait`, or `wait=1` to `wait=60`: answer when the prediction has ended.",
        {"type": "string", "pattern": "^(wait(=([1-9]|[1-5][0-9]|60))?|respond-async)$"},
    ),
    "Cancel-After": (
        "Cancel the prediction if it has not ended by then, as `30s`, `90` or `1h30m`.",
        {"type": "string", "pattern": "^([1-9][0-9]?h)?[1-9][0-9]?m$|^[1-9][0-9]?s?$"},
    ),
    "Idempotency-Key": (
        "The same value with the same body is the same prediction.",
        {"type": "string", "minLength": 1, "maxLength": 255},
    ),
}

Answers = dict[int | str, dict[str, Any]]


def _answers(status: int, schema: Mapping[str, Any], about: str) -> Answers:
    return {status: {"description": about, "content": {"application/json": {"schema": schema}}}}


CREATED: Final[Answers] = {
    **_answers(201, PREDICTION, "The prediction."),
    **may_answer(404, 409, 500, 504),
}
SHOWN: Final[Answers] = {**_answers(200, PREDICTION, "The prediction."), **may_answer(500)}
LISTED: Final[Answers] = _answers(200, _PAGE, "A page of predictions, the newest first.")
STREAMED: Final[dict[str, Any]] = {
    "responses": {
        200: {
            "description": "Events. Each has an id; `Last-Event-ID` asks for those after it.",
            "content": {"text/event-stream": {"schema": _EVENT}},
        },
        **may_answer(500),
    },
    "openapi_extra": {
        "parameters": [
            {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
        ]
    },
}
"""How the routes that send events are described."""
SECRET: Final[Answers] = {
    **_answers(
        200,
        {"type": "object", "properties": {"key": TEXT}, "required": ["key"]},
        "The secret, `whsec_…`.",
    ),
    **may_answer(404),
}
VERSION: Final[Answers] = _answers(200, _VERSION, "The version.")


def input_schema() -> dict[str, Any]:
    """Return the JSON schema of what `input` has."""
    schemas = parameter_schemas()
    own = {name: schemas[name] for name in INPUT_NAMES}
    theirs = {name: schemas[name_here] for name, name_here in THEIR_NAMES.items()}
    return {
        "type": "object",
        "properties": own | theirs,
        "required": ["prompt"],
        "additionalProperties": False,
    }


def creating() -> dict[str, Any]:
    """Return the description of a request that creates a prediction: body and headers."""
    schema = without_references(PredictionRequest.model_json_schema())
    schema["properties"]["input"] |= input_schema()
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        },
        "parameters": [
            {"name": name, "in": "header", "schema": header, "description": about}
            for name, (about, header) in _HEADERS.items()
        ],
    }
