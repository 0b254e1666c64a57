"""Describe the routes that look into the datasets of runs in the OpenAPI document."""

from typing import Final

from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.producer.gateway.web.schemas import (
    COUNT,
    FLAG,
    TEXT,
    TEXT_OR_NULL,
    Answers,
    in_json,
    list_object_of,
    object_of,
)

_NOT_PLANNED: Final[Answers] = {409: {"description": "The run is not planned yet."}}


_REJECTED: Final = {
    "type": "object",
    "properties": {
        "row": {**COUNT, "description": "From 0, in the order of the input."},
        "field": TEXT,
        "value": TEXT_OR_NULL,
        "reason": TEXT,
    },
    "required": ["row", "field", "value", "reason"],
}
_SAMPLE: Final = object_of(
    {
        "key": {**TEXT, "description": "Row and number of the image."},
        "shard": TEXT,
        "url": {**TEXT, "description": "It opens for a while without a key."},
        "row": COUNT,
        "prompt": TEXT,
        "seed": COUNT,
        "width": COUNT,
        "height": COUNT,
    }
)
_IMAGE: Final = {"schema": {**TEXT, "format": "binary"}}
REJECTED_ANSWERS: Final[Answers] = {
    200: in_json(
        "Rows that could not be planned.",
        list_object_of(_REJECTED, "RejectedRows", total=COUNT, has_more=FLAG),
    ),
    **_NOT_PLANNED,
}
SAMPLE_ANSWERS: Final[Answers] = {
    200: in_json("Images from all over the run.", list_object_of(_SAMPLE, "RunSample")),
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
