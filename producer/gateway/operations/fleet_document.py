"""Describe the routes of operators in the OpenAPI document."""

from typing import Any, Final

from imagefleet.producer.gateway.web.schemas import (
    COUNT,
    COUNT_OR_NULL,
    FLAG,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    Answers,
    array_of,
    in_json,
    list_object_of,
    object_of,
)
from imagefleet.shared.jobs.worker_status import WorkerState

_REASON: Final = {
    "type": ["string", "null"],
    "description": "Without the values that it quotes: they may be a tenant's.",
}


def _json(about: str, schema: dict[str, Any]) -> Answers:
    return {200: in_json(about, schema)}


_JOB: Final = {
    "job_id": {**TEXT_OR_NULL, "description": "As the command line knows it."},
    "own_id": {**TEXT_OR_NULL, "description": "As `/v1/jobs` knows it. Null: of another tenant."},
}
_TENANT: Final = {"tenant": TEXT_OR_NULL}
_FAILED: Final = {
    "code": TEXT_OR_NULL,
    "reason": _REASON,
    "host": TEXT_OR_NULL,
    "at": TIME_OR_NULL,
}
_HOST: Final = object_of(
    {
        "name": {**TEXT, "description": "Of the worker: host, process id and a random part."},
        "host": TEXT,
        "state": {"enum": sorted(WorkerState)},
        "model": TEXT,
        "shapes": array_of(TEXT),
        "devices": TEXT,
        "slots": {**COUNT, "description": "Images of a full batch."},
        "in_flight": {**COUNT, "description": "Messages that it holds."},
        "busy": {**NUMBER, "description": "Share of the time with a batch on the devices."},
        "fill": {**NUMBER_OR_NULL, "description": "Share of the slots that were used."},
        "step_s": NUMBER_OR_NULL,
        "images": {**COUNT, "description": "Since its start."},
        "images_per_minute": NUMBER,
        "lease_s": {**NUMBER_OR_NULL, "description": "Until its lease expires."},
        "last_seen_s": {**NUMBER_OR_NULL, "description": "Since its latest heartbeat."},
        "started_at": TIME_OR_NULL,
        "release": TEXT,
        "drained": FLAG,
        "reason": {**_REASON, "description": "Its latest error, without quoted values."},
        "reason_at": TIME_OR_NULL,
        "recovered": {**FLAG, "description": "It has made an image since."},
    }
)
_QUEUE: Final = object_of(
    {
        "model": TEXT,
        "shape": TEXT,
        "work": {"enum": ["jobs", "rows"]},
        "waiting": COUNT,
        "tenants": COUNT,
        "oldest_s": NUMBER_OR_NULL,
    }
)
_RATES: Final = object_of(
    {
        "images_per_minute": {**NUMBER, "description": "In the last minute."},
        "succeeded_per_hour": {**NUMBER, "description": "Jobs, by the last half hour."},
        "failed_per_hour": NUMBER,
        "cancelled_per_hour": NUMBER,
        "failed_attempts_per_hour": {**COUNT, "description": "Also those that were retried."},
    }
)
_FLEET: Final = object_of(
    {
        "object": {"const": "fleet"},
        "hosts": array_of(_HOST),
        "differences": {
            "type": "array",
            "items": object_of({"host": TEXT, "text": TEXT, "allowed": FLAG}),
        },
        "queues": array_of(_QUEUE),
        "rates": _RATES,
        "failed_attempts": {
            "type": "object",
            "description": "Of the last hour, by host and code.",
            "additionalProperties": {"type": "object", "additionalProperties": COUNT},
        },
        "waiting": COUNT,
        "in_flight": COUNT,
        "delayed": COUNT,
        "dead_letters": COUNT,
        "callbacks": object_of({"waiting": COUNT, "given_up": COUNT}),
        "dataset_idle_s": NUMBER,
        "redis": object_of({"used_bytes": COUNT_OR_NULL, "limit_bytes": COUNT_OR_NULL}),
        "lanes_down": {
            **array_of(COUNT),
            "description": "Lanes of a cluster that do not answer, and count as they did last.",
        },
        "models": array_of(TEXT),
    },
    title="Fleet",
)
_FAILURE: Final = object_of({**_JOB, **_TENANT, **_FAILED, "model": TEXT_OR_NULL, "retries": COUNT})
_LETTER: Final = object_of(
    {
        "id": TEXT,
        **_JOB,
        **_TENANT,
        **_FAILED,
        "deliveries": COUNT,
        "queue": TEXT,
        "can_be_redriven": FLAG,
    }
)
_CALLBACK: Final = object_of(
    {
        "id": TEXT,
        "job_id": TEXT,
        "receiver": {**TEXT, "description": "Host and port."},
        "at": TIME_OR_NULL,
        "attempts": COUNT,
        "verdict": TEXT_OR_NULL,
        "status": {**COUNT_OR_NULL, "description": "Of the last answer."},
        "reason": _REASON,
    }
)
_ALERT: Final = object_of(
    {
        "name": TEXT,
        "severity": {"enum": ["page", "ticket"]},
        "text": TEXT,
        "what_to_do": TEXT,
        "for_s": {**COUNT, "description": "Prometheus alerts after it has held for so long."},
        "runbook": TEXT,
    }
)
_NOTE: Final = {"id": TEXT, "redriven": FLAG, "note": TEXT}

FLEET: Final[Answers] = _json("The fleet now.", _FLEET)
FAILURES: Final[Answers] = _json(
    "Failed jobs, the latest first.", list_object_of(_FAILURE, "Failures")
)
ALERTS: Final[Answers] = _json("What is wrong now.", list_object_of(_ALERT, "Alerts"))
DEAD_LETTERS: Final[Answers] = _json(
    "Dead letters, the latest first.", list_object_of(_LETTER, "DeadLetters")
)
REDRIVEN: Final[Answers] = _json("What came of it.", object_of(_NOTE))
ALL_REDRIVEN: Final[Answers] = _json(
    "What came of it.",
    object_of(
        {
            "redriven": COUNT,
            "not_redriven": array_of(object_of(_NOTE)),
            "left": {**COUNT, "description": "Send the request again for these."},
        }
    ),
)
CALLBACKS: Final[Answers] = _json(
    "Callbacks that were given up, the latest first.", list_object_of(_CALLBACK, "Callbacks")
)
REPLAYED: Final[Answers] = {204: {"description": "It is due now."}}
