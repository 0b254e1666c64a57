"""Describe the routes of operators in the OpenAPI document."""

from typing import Any, Final

from imagefleet.shared.jobs.worker_status import WorkerState

_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_COUNT_OR_NULL: Final = {"type": ["integer", "null"]}
_NUMBER: Final = {"type": "number"}
_NUMBER_OR_NULL: Final = {"type": ["number", "null"]}
_FLAG: Final = {"type": "boolean"}
_TIME_OR_NULL: Final = {"type": ["number", "null"], "description": "Unix seconds."}
_REASON: Final = {
    "type": ["string", "null"],
    "description": "Without the values that it quotes: they may be a tenant's.",
}

Answers = dict[int | str, dict[str, Any]]


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def _list(item: dict[str, Any], title: str) -> dict[str, Any]:
    fields = {"object": {"const": "list"}, "data": {"type": "array", "items": item}}
    return _object(fields, title=title)


def _json(about: str, schema: dict[str, Any]) -> Answers:
    return {200: {"description": about, "content": {"application/json": {"schema": schema}}}}


_JOB: Final = {
    "job_id": {**_TEXT_OR_NULL, "description": "As the command line knows it."},
    "own_id": {**_TEXT_OR_NULL, "description": "As `/v1/jobs` knows it. Null: of another tenant."},
}
_TENANT: Final = {"tenant": _TEXT_OR_NULL}
_FAILED: Final = {
    "code": _TEXT_OR_NULL,
    "reason": _REASON,
    "host": _TEXT_OR_NULL,
    "at": _TIME_OR_NULL,
}
_HOST: Final = _object(
    {
        "name": {**_TEXT, "description": "Of the worker: host, process id and a random part."},
        "host": _TEXT,
        "state": {"enum": sorted(WorkerState)},
        "model": _TEXT,
        "shapes": {"type": "array", "items": _TEXT},
        "devices": _TEXT,
        "slots": {**_COUNT, "description": "Images of a full batch."},
        "in_flight": {**_COUNT, "description": "Messages that it holds."},
        "busy": {**_NUMBER, "description": "Share of the time with a batch on the devices."},
        "fill": {**_NUMBER_OR_NULL, "description": "Share of the slots that were used."},
        "step_s": _NUMBER_OR_NULL,
        "images": {**_COUNT, "description": "Since its start."},
        "images_per_minute": _NUMBER,
        "lease_s": {**_NUMBER_OR_NULL, "description": "Until its lease expires."},
        "last_seen_s": {**_NUMBER_OR_NULL, "description": "Since its latest heartbeat."},
        "started_at": _TIME_OR_NULL,
        "release": _TEXT,
        "drained": _FLAG,
        "reason": {**_REASON, "description": "Its latest error, without quoted values."},
        "reason_at": _TIME_OR_NULL,
        "recovered": {**_FLAG, "description": "It has made an image since."},
    }
)
_QUEUE: Final = _object(
    {
        "model": _TEXT,
        "shape": _TEXT,
        "work": {"enum": ["jobs", "rows"]},
        "waiting": _COUNT,
        "tenants": _COUNT,
        "oldest_s": _NUMBER_OR_NULL,
    }
)
_RATES: Final = _object(
    {
        "images_per_minute": {**_NUMBER, "description": "In the last minute."},
        "succeeded_per_hour": {**_NUMBER, "description": "Jobs, by the last half hour."},
        "failed_per_hour": _NUMBER,
        "cancelled_per_hour": _NUMBER,
        "failed_attempts_per_hour": {**_COUNT, "description": "Also those that were retried."},
    }
)
_FLEET: Final = _object(
    {
        "object": {"const": "fleet"},
        "hosts": {"type": "array", "items": _HOST},
        "differences": {
            "type": "array",
            "items": _object({"host": _TEXT, "text": _TEXT, "allowed": _FLAG}),
        },
        "queues": {"type": "array", "items": _QUEUE},
        "rates": _RATES,
        "failed_attempts": {
            "type": "object",
            "description": "Of the last hour, by host and code.",
            "additionalProperties": {"type": "object", "additionalProperties": _COUNT},
        },
        "waiting": _COUNT,
        "in_flight": _COUNT,
        "delayed": _COUNT,
        "dead_letters": _COUNT,
        "callbacks": _object({"waiting": _COUNT, "given_up": _COUNT}),
        "dataset_idle_s": _NUMBER,
        "redis": _object({"used_bytes": _COUNT_OR_NULL, "limit_bytes": _COUNT_OR_NULL}),
        "models": {"type": "array", "items": _TEXT},
    },
    title="Fleet",
)
_FAILURE: Final = _object({**_JOB, **_TENANT, **_FAILED, "model": _TEXT_OR_NULL, "retries": _COUNT})
_LETTER: Final = _object(
    {
        "id": _TEXT,
        **_JOB,
        **_TENANT,
        **_FAILED,
        "deliveries": _COUNT,
        "queue": _TEXT,
        "can_be_redriven": _FLAG,
    }
)
_CALLBACK: Final = _object(
    {
        "id": _TEXT,
        "job_id": _TEXT,
        "receiver": {**_TEXT, "description": "Host and port."},
        "at": _TIME_OR_NULL,
        "attempts": _COUNT,
        "verdict": _TEXT_OR_NULL,
        "status": {**_COUNT_OR_NULL, "description": "Of the last answer."},
        "reason": _REASON,
    }
)
_ALERT: Final = _object(
    {
        "name": _TEXT,
        "severity": {"enum": ["page", "ticket"]},
        "text": _TEXT,
        "what_to_do": _TEXT,
        "for_s": {**_COUNT, "description": "Prometheus alerts after it has held for so long."},
        "runbook": _TEXT,
    }
)
_NOTE: Final = {"id": _TEXT, "redriven": _FLAG, "note": _TEXT}

FLEET: Final[Answers] = _json("The fleet now.", _FLEET)
FAILURES: Final[Answers] = _json("Failed jobs, the latest first.", _list(_FAILURE, "Failures"))
ALERTS: Final[Answers] = _json("What is wrong now.", _list(_ALERT, "Alerts"))
DEAD_LETTERS: Final[Answers] = _json(
    "Dead letters, the latest first.", _list(_LETTER, "DeadLetters")
)
REDRIVEN: Final[Answers] = _json("What came of it.", _object(_NOTE))
ALL_REDRIVEN: Final[Answers] = _json(
    "What came of it.",
    _object(
        {
            "redriven": _COUNT,
            "not_redriven": {"type": "array", "items": _object(_NOTE)},
            "left": {**_COUNT, "description": "Send the request again for these."},
        }
    ),
)
CALLBACKS: Final[Answers] = _json(
    "Callbacks that were given up, the latest first.", _list(_CALLBACK, "Callbacks")
)
REPLAYED: Final[Answers] = {204: {"description": "It is due now."}}
