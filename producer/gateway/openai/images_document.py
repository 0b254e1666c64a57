"""Describe the routes of the OpenAI Images API in the OpenAPI document: bodies and answers."""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.gateway.jobs.parameter_schemas import parameter_schemas
from imagefleet.producer.gateway.openai.images_request import ImagesRequest
from imagefleet.producer.gateway.web.document import OF_JOBS, may_answer, of_events
from imagefleet.producer.gateway.web.schemas import TEXT

_NUMBER: Final = {"type": "integer"}
_FILE: Final = {"type": "string", "format": "binary"}
_LOOKS: Final = {
    "background": {"const": "opaque"},
    "output_format": {"enum": ["png", "jpeg", "webp", "safetensors"]},
    "size": TEXT,
    "id": {"type": "string", "description": "The id of the job."},
}
_IMAGE: Final = {
    "type": "object",
    "properties": {"b64_json": TEXT, "url": TEXT, "seed": _NUMBER},
    "oneOf": [{"required": ["b64_json"]}, {"required": ["url"]}],
    "required": ["seed"],
}
_IMAGES: Final = {
    "title": "Images",
    "type": "object",
    "properties": {
        "created": {"type": "integer", "description": "Unix seconds."},
        "data": {"type": "array", "items": _IMAGE},
        **_LOOKS,
    },
    "required": ["created", "data", "id"],
}
_EVENT: Final = {
    "title": "ImagesEvent",
    "type": "object",
    "description": "The data of one event; its `type` is also the name of the event.",
    "properties": {
        "type": {
            "enum": [
                "image_generation.partial_image",
                "image_generation.completed",
                "image_edit.partial_image",
                "image_edit.completed",
                "error",
            ]
        },
        "b64_json": TEXT,
        "created_at": _NUMBER,
        "partial_image_index": _NUMBER,
        "quality": TEXT,
        "seed": _NUMBER,
        "usage": {"type": "object"},
        "error": {"type": "object"},
        **_LOOKS,
    },
    "required": ["type"],
}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The images, or events if the request has `stream`: previews, then each "
        "image, or one error.",
        "content": {
            "application/json": {"schema": _IMAGES},
            **of_events(_EVENT),
        },
        "links": {
            "image": {
                "operationId": "get_image",
                "parameters": {"job_id": "$response.body#/id", "file": "0.png"},
            }
        },
    },
    **may_answer(*OF_JOBS),
}
"""Answers of the routes that make images."""
_ADDRESS: Final = {
    "type": "object",
    "properties": {"image_url": TEXT, "file_id": TEXT},
    "oneOf": [{"required": ["image_url"]}, {"required": ["file_id"]}],
}


def images_body() -> dict[str, Any]:
    """Return the description of a request for images."""
    return _body({"application/json": _schema({}, [])})


def edits_body() -> dict[str, Any]:
    """Return the description of a request for edited images."""
    start = {
        "type": "array",
        "items": _ADDRESS,
        "minItems": 1,
        "maxItems": 1,
        "description": "The image to start from: a file, an http(s) or data: URL, or an address of "
        "an image of this gateway.",
    }
    about_mask = "of an image that is transparent where it is edited."
    mask = {**_ADDRESS, "description": f"A data: URL, or a file, {about_mask}"}
    files = {
        "image": {**_FILE, "description": "The image to start from; also as `image[]`."},
        "mask": {**_FILE, "description": f"The file {about_mask}"},
    }
    return _body(
        {
            "application/json": _schema({"images": start, "mask": mask}, ["images"]),
            "multipart/form-data": _schema(files, ["image"]),
        }
    )


def _body(schemas: Mapping[str, Any]) -> dict[str, Any]:
    content = {media_type: {"schema": schema} for media_type, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def _schema(fields: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the schema of a body: OpenAI's fields, the parameters of a job, and these fields."""
    schema = ImagesRequest.model_json_schema()
    properties = {**parameter_schemas(), **schema["properties"], **fields}
    properties["prompt"] = parameter_schemas()["prompt"]
    return {
        **schema,
        "properties": properties,
        "required": [*schema["required"], *required],
        "additionalProperties": False,
    }
