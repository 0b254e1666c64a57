"""Describe in the OpenAPI document how models are answered."""

from typing import Any, Final

_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_MODEL: Final = {
    "title": "Model",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"const": 0},
        "owned_by": {"const": "imagefleet"},
        "digest": {"type": "string", "description": "Of all files that influence an image."},
        "license": {
            "type": ["string", "null"],
            "description": "Of the model, as its card or its workers' settings say it.",
        },
        "sizes": {**_TEXTS, "description": "WIDTHxHEIGHT in pixels."},
        "schedulers": _TEXTS,
        "loras": _TEXTS,
        "controlnets": _TEXTS,
        "scheduler": {"type": ["string", "null"], "description": "The default."},
        "num_inference_steps": {"type": ["integer", "null"], "description": "The default."},
        "max_num_inference_steps": {"type": ["integer", "null"]},
        "guidance_scale": {"type": ["number", "null"], "description": "The default."},
    },
    "required": ["id", "object", "created", "owned_by", "sizes", "schedulers", "loras"],
    "additionalProperties": False,
}
_MODELS: Final = {
    "title": "Models",
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
    "required": ["object", "data"],
}


def _answers(schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"schema": schema}}}}


MODEL_ANSWERS: Final = _answers(_MODEL)
MODELS_ANSWERS: Final = _answers(_MODELS)
