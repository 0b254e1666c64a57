"""Describe the routes of files in the OpenAPI document."""

from typing import Any, Final

from imagefleet.producer.gateway.batches.uploads import PURPOSES
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.producer.gateway.web.schemas import (
    COUNT,
    TEXT,
    Answers,
    in_json,
)

_OPENAI_FILE: Final = {
    "title": "File",
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": {"const": "file"},
        "bytes": COUNT,
        "created_at": COUNT,
        "expires_at": COUNT,
        "filename": TEXT,
        "purpose": TEXT,
        "status": {"const": "processed"},
    },
    "required": ["id", "object", "bytes", "created_at", "expires_at", "filename", "purpose"],
}
_REPLICATE_FILE: Final = {
    "title": "UploadedFile",
    "type": "object",
    "properties": {
        "id": TEXT,
        "name": TEXT,
        "content_type": TEXT,
        "size": COUNT,
        "etag": TEXT,
        "checksums": {"type": "object", "additionalProperties": TEXT},
        "metadata": {"type": "object"},
        "created_at": TEXT,
        "expires_at": TEXT,
        "urls": {"type": "object", "properties": {"get": TEXT}, "required": ["get"]},
    },
    "required": ["id", "name", "content_type", "size", "metadata", "created_at", "urls"],
}
_FORM: Final = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "The file, as OpenAI's."},
        "purpose": {"type": "string", "enum": list(PURPOSES), "description": "Beside `file`."},
        "content": {"type": "string", "format": "binary", "description": "As Replicate's."},
        "metadata": {"type": "string", "description": "A JSON object beside `content`."},
    },
}
FORM: Final = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
}


def list_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a page in OpenAI's form."""
    return {
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": schema},
            "first_id": {"type": ["string", "null"]},
            "last_id": {"type": ["string", "null"]},
            "has_more": {"type": "boolean"},
        },
        "required": ["object", "data", "has_more"],
    }


_LIST: Final = list_of(_OPENAI_FILE)
_LISTS: Final = {
    **_LIST,
    "properties": {
        **_LIST["properties"],
        "results": {"type": "array", "items": _REPLICATE_FILE},
        "next": {"type": "null"},
        "previous": {"type": "null"},
    },
}
_DELETED: Final = {
    "type": "object",
    "properties": {"id": TEXT, "object": {"const": "file"}, "deleted": {"const": True}},
    "required": ["id", "object", "deleted"],
}
UPLOAD_ANSWERS: Final[Answers] = {
    200: in_json("The file, as OpenAI has it.", _OPENAI_FILE),
    201: in_json("The file, as Replicate has it.", _REPLICATE_FILE),
    409: {"description": "The tenant has too many files."},
}
LIST_ANSWERS: Final[Answers] = {
    200: in_json("The files.", _LISTS),
    404: {"description": "There is no file `after`."},
}
FILE_ANSWERS: Final[Answers] = {
    200: in_json("The file.", {"anyOf": [_OPENAI_FILE, _REPLICATE_FILE]})
}
DOWNLOAD_ANSWERS: Final[Answers] = {
    200: {
        "description": "The file.",
        "content": {"application/octet-stream": {"schema": {**TEXT, "format": "binary"}}},
    },
    **may_answer(503),
}
DELETE_ANSWERS: Final[Answers] = {
    200: in_json("It was deleted; of OpenAI's form.", _DELETED),
    204: {"description": "It was deleted; of Replicate's form."},
}
