"""Describe the routes of jobs in the OpenAPI document."""

from typing import Final

from imagefleet.producer.gateway.jobs.images import CONTENT_TYPES
from imagefleet.producer.gateway.web.document import may_answer
from imagefleet.producer.gateway.web.schemas import (
    COUNT,
    FLAG,
    TEXT,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    Answers,
    in_json,
    object_of,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS

_IMAGE: Final = object_of(
    {
        "url": {**TEXT, "description": "It opens for a while without a key."},
        "file": TEXT,
        "width": COUNT,
        "height": COUNT,
        "format": {"enum": sorted(CONTENT_TYPES)},
        "seed": COUNT,
        "index": {**COUNT, "description": "It says which image of the job this is, from 0."},
        "size": {**COUNT, "description": "Bytes."},
        "nsfw": {**FLAG, "description": "The safety checker of the model made it black."},
    }
)
_FIELDS: Final = {
    "id": TEXT,
    "object": {"const": "job"},
    "state": {"enum": sorted(State)},
    "model": {**TEXT_OR_NULL, "description": "Null: the default model, before it ran."},
    "created_at": {"type": "number", "description": "Unix seconds."},
    "started_at": TIME_OR_NULL,
    "ended_at": TIME_OR_NULL,
    "seconds": {"type": ["number", "null"], "description": "From its start to its end."},
    "progress": object_of({"step": COUNT, "steps": COUNT}),
    "host": {**TEXT_OR_NULL, "description": "Only for keys with `operate`."},
    "retries": COUNT,
    "error": {"anyOf": [object_of({"code": TEXT, "message": TEXT}), {"type": "null"}]},
    "parameters": {
        "type": "object",
        "description": "In the names of a job; they may be sent again.",
    },
    "inputs": {
        "type": "array",
        "items": {"enum": list(INPUT_FIELDS)},
        "description": "What it started from. An uploaded one does not stand in `parameters`.",
    },
    "images": {"type": "array", "items": _IMAGE},
    "images_kept_until": TIME_OR_NULL,
    "images_deleted": FLAG,
    "starred": FLAG,
}
_JOB: Final = object_of(
    {
        **_FIELDS,
        "preview": {
            **TEXT_OR_NULL,
            "description": "A `data:` URL, while a job with `preview` runs.",
        },
    },
    title="Job",
)
_CURSOR: Final = {**TEXT_OR_NULL, "description": "For `cursor`. Null: there is no further page."}
_PAGE: Final = object_of(
    {
        "object": {"const": "list"},
        "data": {"type": "array", "items": object_of(_FIELDS)},
        "next": {**_CURSOR, "description": "For `cursor`: older jobs. Null: there are none."},
        "previous": {**_CURSOR, "description": "For `cursor`: newer jobs. Null: there are none."},
        "searched_until": {
            "type": ["number", "null"],
            "description": "When the last job was submitted that was looked at, in Unix seconds.",
        },
        "complete": {
            **FLAG,
            "description": "Whether all jobs in this direction were looked at. If not, the time of "
            "a search was over, or the page is full.",
        },
    },
    title="Jobs",
)

LISTED: Final[Answers] = {200: in_json("A page of jobs, the newest first.", _PAGE)}
SHOWN: Final[Answers] = {200: in_json("The job.", _JOB), **may_answer(500)}
STARRED: Final[Answers] = {204: {"description": "Done."}, **may_answer(500)}
