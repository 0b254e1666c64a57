"""Describe the routes of jobs in the OpenAPI document."""

from typing import Any, Final

from imagefleet.producer.gateway.jobs.images import CONTENT_TYPES
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.prediction import INPUTS

_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}
_TIME_OR_NULL: Final = {"type": ["number", "null"], "description": "Unix seconds."}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


_IMAGE: Final = _object(
    {
        "url": {**_TEXT, "description": "It opens for a while without a key."},
        "file": _TEXT,
        "width": _COUNT,
        "height": _COUNT,
        "format": {"enum": sorted(CONTENT_TYPES)},
        "seed": _COUNT,
        "image_index": _COUNT,
        "size": {**_COUNT, "description": "Bytes."},
        "nsfw": {**_FLAG, "description": "The safety checker of the model made it black."},
    }
)
_FIELDS: Final = {
    "id": _TEXT,
    "object": {"const": "job"},
    "state": {"enum": sorted(State)},
    "model": {**_TEXT_OR_NULL, "description": "Null: the default model, before it ran."},
    "created_at": {"type": "number", "description": "Unix seconds."},
    "started_at": _TIME_OR_NULL,
    "ended_at": _TIME_OR_NULL,
    "seconds": {"type": ["number", "null"], "description": "From its start to its end."},
    "progress": _object({"step": _COUNT, "steps": _COUNT}),
    "host": {**_TEXT_OR_NULL, "description": "Only for keys with `operate`."},
    "retries": _COUNT,
    "error": {"anyOf": [_object({"code": _TEXT, "message": _TEXT}), {"type": "null"}]},
    "parameters": {
        "type": "object",
        "description": "In the names of a job; they may be sent again.",
    },
    "inputs": {
        "type": "array",
        "items": {"enum": list(INPUTS)},
        "description": "What it started from. An uploaded one does not stand in `parameters`.",
    },
    "images": {"type": "array", "items": _IMAGE},
    "images_kept_until": _TIME_OR_NULL,
    "images_deleted": _FLAG,
    "starred": _FLAG,
}
_JOB: Final = _object(
    {
        **_FIELDS,
        "preview": {
            **_TEXT_OR_NULL,
            "description": "A `data:` URL, while a job with `preview` runs.",
        },
    },
    title="Job",
)
_CURSOR: Final = {**_TEXT_OR_NULL, "description": "For `cursor`. Null: there is no further page."}
_PAGE: Final = _object(
    {
        "object": {"const": "list"},
        "data": {"type": "array", "items": _object(_FIELDS)},
        "next": {**_CURSOR, "description": "For `cursor`: older jobs. Null: there are none."},
        "previous": {**_CURSOR, "description": "For `cursor`: newer jobs. Null: there are none."},
        "searched_until": {
            "type": ["number", "null"],
            "description": "When the last job was submitted that was looked at, in Unix seconds.",
        },
        "complete": {
            **_FLAG,
            "description": "Whether all jobs in this direction were looked at. If not, the time of "
            "a search was over, or the page is full.",
        },
    },
    title="Jobs",
)

Answers = dict[int | str, dict[str, Any]]


def _json(about: str, schema: dict[str, Any]) -> Answers:
    return {200: {"description": about, "content": {"application/json": {"schema": schema}}}}


LISTED: Final[Answers] = _json("A page of jobs, the newest first.", _PAGE)
SHOWN: Final[Answers] = {**_json("The job.", _JOB), **may_answer(500)}
STARRED: Final[Answers] = {204: {"description": "Done."}, **may_answer(500)}
