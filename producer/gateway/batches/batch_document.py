"""Describe the routes of batches and runs in the OpenAPI document."""

from typing import Any, Final

from pydantic import BaseModel

from imagefleet.producer.gateway.batches.batch_request import (
    OPTIONS,
    BatchRequest,
    RunRequest,
)
from imagefleet.producer.gateway.batches.file_document import list_of
from imagefleet.producer.gateway.batches.verification import VerificationState
from imagefleet.producer.gateway.web.document import may_answer, of_events
from imagefleet.producer.gateway.web.schemas import TEXT, Answers, in_json
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS

_COUNT: Final = {"type": "integer"}
_COUNTS: Final = {"type": "object", "additionalProperties": {"type": ["integer", "null"]}}
_ORDER: Final = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": {"enum": ["batch", "run"]},
        "status": TEXT,
        "created_at": _COUNT,
        "input_file_id": TEXT,
        "metadata": {"type": "object", "additionalProperties": TEXT},
    },
    "required": ["id", "object", "status", "created_at", "input_file_id", "metadata"],
}
_FILE: Final = {
    "type": "object",
    "properties": {"id": TEXT, "bytes": _COUNT, "sha256": TEXT, "url": TEXT},
    "required": ["id", "bytes", "sha256", "url"],
}
_BATCH: Final = {
    **_ORDER,
    "title": "Batch",
    "properties": {**_ORDER["properties"], "request_counts": _COUNTS},  # type: ignore[dict-item]
}
_PROBLEM: Final = {
    "type": "object",
    "properties": {"shard": TEXT, "what": TEXT, "detail": TEXT, "samples": _COUNT},
    "required": ["shard", "what", "detail", "samples"],
}
_VERIFICATION: Final = {
    "type": ["object", "null"],
    "description": "The latest that was asked for.",
    "properties": {
        "state": {"enum": list(VerificationState)},
        "repair": {"type": "boolean", "description": "Damaged shards are made again."},
        "requested_at": {"type": "number", "description": "Unix seconds."},
        "ended_at": {"type": ["number", "null"]},
        "shards": _COUNT,
        "checked": {**_COUNT, "description": "Shards."},
        "planned": {**_COUNT, "description": "Images, as `present` and `failed`."},
        "present": _COUNT,
        "failed": {**_COUNT, "description": "They could not be generated, which is no problem."},
        "clean": {"type": ["boolean", "null"], "description": "Null: it has not ended."},
        "problem_count": _COUNT,
        "problems": {"type": "array", "items": _PROBLEM, "description": "The first of them."},
        "sent_again": {**_COUNT, "description": "Shards that were repaired."},
        "error": {"type": ["string", "null"], "description": "Why it has failed."},
    },
    "required": ["state", "repair", "shards", "checked", "clean", "problem_count", "problems"],
}
_RUN: Final = {
    **_ORDER,
    "title": "Run",
    "properties": {
        **_ORDER["properties"],  # type: ignore[dict-item]
        "rows": _COUNTS,
        "images": _COUNTS,
        "callback_url": {"type": ["string", "null"], "description": "It is shown without a query."},
        "verification": _VERIFICATION,
    },
}
_UNKNOWN_PAGE: Final[Answers] = {404: {"description": "There is none with the id `after`."}}
_CONTENT: Final = {"schema": {**TEXT, "format": "binary"}}
_STREAM: Final = {
    "description": "Events `run` with the run, then `done`; `stopping`, with the reason, if the "
    "gateway ends or Redis is away.",
    "content": of_events({"type": "object"}),
}
BATCH_ANSWERS: Final[Answers] = {200: in_json("The batch.", _BATCH)}
BATCHES_ANSWERS: Final[Answers] = {
    200: in_json("Batches.", list_of(_BATCH)),
    **_UNKNOWN_PAGE,
}
CREATE_ANSWERS: Final[Answers] = {
    **BATCH_ANSWERS,
    404: {"description": "There is no such file."},
    409: {"description": "The `Idempotency-Key` belongs to another request."},
}
RUN_ANSWERS: Final[Answers] = {200: in_json("The run.", _RUN)}
RUNS_ANSWERS: Final[Answers] = {200: in_json("Runs.", list_of(_RUN)), **_UNKNOWN_PAGE}
RUN_CREATE_ANSWERS: Final[Answers] = {**CREATE_ANSWERS, **RUN_ANSWERS}
CANCEL_ANSWERS: Final[Answers] = {
    200: in_json("It will end soon.", _ORDER),
    409: {"description": "It has ended."},
}
VERIFYING_ANSWERS: Final[Answers] = {
    202: in_json("It has begun, and goes on in the background.", _RUN),
    409: {"description": "The run has not ended, or its state does not allow it."},
}
EVENTS_ANSWERS: Final[Answers] = {200: _STREAM}
RUN_FILES_ANSWERS: Final[Answers] = {
    200: in_json("The files.", list_of(_FILE)),
    409: {"description": "The run is not planned yet."},
}
RUN_FILE_ANSWERS: Final[Answers] = {
    200: {
        "description": "The file.",
        "content": dict.fromkeys(
            (
                *("image/png", "image/jpeg", "image/webp"),
                *("application/json", "application/octet-stream"),
            ),
            _CONTENT,
        ),
    },
    409: {"description": "The run is not planned yet."},
    **may_answer(401, 403, 429, 503),
}


def batch_body_schema() -> dict[str, Any]:
    """Return what the document says of the body that orders a batch."""
    return _body(BatchRequest)


def run_body_schema() -> dict[str, Any]:
    """Return what the document says of the body that orders a run."""
    options = {
        name: {"description": PARAMETERS[name].about if name in PARAMETERS else "See datasets."}
        for name in sorted(OPTIONS)
    }
    return _body(RunRequest, options)


def _body(kind: type[BaseModel], more: dict[str, Any] | None = None) -> dict[str, Any]:
    schema = kind.model_json_schema()
    schema["properties"] = {**(more or {}), **schema["properties"]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
