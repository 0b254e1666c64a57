"""Describe the routes of AUTOMATIC1111's API in the OpenAPI document: bodies and answers."""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.gateway.jobs.parameter_schemas import parameter_schemas
from imagefleet.producer.gateway.web.document import OF_JOBS, may_answer
from imagefleet.producer.gateway.web.schemas import TEXT
from imagefleet.shared.jobs.parameter_types import MAX_PROMPT_CHARACTERS

_OBJECT: Final = {"type": "object"}
_IMAGE: Final = {"type": "string", "description": "An image in base64, or a data: URL."}
_ANSWER: Final = {
    "title": "WebUIImages",
    "type": "object",
    "properties": {
        "images": {"type": "array", "items": TEXT, "description": "Files in base64."},
        "parameters": {"type": "object", "description": "The fields of the request."},
        "info": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["images", "parameters", "info"],
}
GENERATION_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The images, with their parameters.",
        "content": {"application/json": {"schema": _ANSWER}},
    },
    **may_answer(*OF_JOBS),
}
"""The routes that make images have these answers."""
_MODEL: Final = {"type": "string", "description": "A model of `sd-models`."}
_SETTINGS: Final = {
    "type": "object",
    "properties": {
        "sd_model_checkpoint": _MODEL,
        "CLIP_stop_at_last_layers": {"type": "integer", "minimum": 1},
        "samples_format": {"enum": ["png", "jpg", "jpeg", "webp"]},
        "sd_vae": {"enum": ["Automatic", "None"]},
    },
    "additionalProperties": False,
}


def txt2img_body() -> dict[str, Any]:
    """Return the description of a request for images of a prompt."""
    return _body(_fields(), ["prompt"])


def img2img_body() -> dict[str, Any]:
    """Return the description of a request for images that start from one."""
    ours = parameter_schemas()
    fields = {
        "init_images": {"type": "array", "items": _IMAGE, "minItems": 1, "maxItems": 1},
        "denoising_strength": ours["strength"],
        "mask": {**_IMAGE, "description": "Its white part is generated anew."},
        "inpainting_mask_invert": {"enum": [0, 1]},
        "inpainting_fill": {"enum": [1]},
        "inpaint_full_res": {"enum": [False]},
    }
    return _body({**_fields(), **fields}, ["prompt", "init_images"])


def options_body() -> dict[str, Any]:
    """Return the description of a request that sets the model."""
    return _body({"sd_model_checkpoint": _MODEL}, [])


def _fields() -> dict[str, Any]:
    """Return the schemas of the fields that both ways of making images take."""
    ours = parameter_schemas()
    ours.pop("clip_skip")  # it counts as the web UI does
    ours.pop("scheduler")  # it is the sampler there
    return {
        **ours,
        "prompt": {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT_CHARACTERS},
        "seed": {"type": "integer", "minimum": -1, "description": "-1: a random one."},
        "steps": ours["num_inference_steps"],
        "cfg_scale": ours["guidance_scale"],
        "n_iter": ours["num_images_per_prompt"],
        "batch_size": ours["num_images_per_prompt"],
        "sampler_name": {"type": "string", "description": "A sampler of `samplers`."},
        "scheduler": {"type": "string", "description": "Noise levels of `schedulers`."},
        "override_settings": _SETTINGS,
        "send_images": {"type": "boolean"},
    }


def _body(fields: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {
        **_OBJECT,
        "properties": dict(fields),
        "required": required,
        "additionalProperties": False,
    }
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}
