"""Describe the routes that look into the datasets of runs in the OpenAPI document."""

from typing import Any, Final

from imagefleet.producer.gateway.batches.file_document import Answers, in_json
from imagefleet.producer.gateway.web.document import may_answer

_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_NOT_PLANNED: Final[Answers] = {409: {"description": "The run is not planned yet."}}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def _list(item: dict[str, Any], title: str, **more: Any) -> dict[str, Any]:
    data = {"type": "array", "items": item}
    return _object({"object": {"const": "list"}, "data": data, **more}, title=title)


_REJECTED: Final = {
    "type": "object",
    "properties": {
        "row": {**_COUNT, "description": "From 0, in the order of the input."},
        "field": _TEXT,
        "value": _TEXT_OR_NULL,
        "reason": _TEXT,
    },
    "required": ["row", "field", "value", "reason"],
}
_SAMPLE: Final = _object(
    {
        "key": {**_TEXT, "description": "Row and number of the image."},
        "shard": _TEXT,
        "url": {**_TEXT, "description": "It opens for a while without a key."},
        "row": _COUNT,
        "prompt": _TEXT,
        "seed": _COUNT,
        "width": _COUNT,
        "height": _COUNT,
    }
)
_IMAGE: Final = {"schema": {**_TEXT, "format": "binary"}}
REJECTED_ANSWERS: Final[Answers] = {
    200: in_json(
        "Rows that could not be planned.",
        _list(_REJECTED, "RejectedRows", total=_COUNT, has_more={"type": "boolean"}),
    ),
    **_NOT_PLANNED,
}
SAMPLE_ANSWERS: Final[Answers] = {
    200: in_json("Images from all over the run.", _list(_SAMPLE, "RunSample")),
    **_NOT_PLANNED,
}
IMAGE_ANSWERS: Final[Answers] = {
    200: {
        "description": "The file of the image.",
        "content": dict.fromkeys(("image/png", "image/jpeg", "image/webp"), _IMAGE),
    },
    **_NOT_PLANNED,
    **may_answer(401, 403, 429, 503),
}
