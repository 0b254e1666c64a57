"""Write errors as Replicate does: problem details of RFC 7807."""

from http import HTTPStatus
from typing import Any, Final

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.schemas import TEXT

MEDIA_TYPE: Final = "application/problem+json"
ERROR_SCHEMA: Final = {
    "title": "ProblemDetails",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": {**TEXT, "description": "One sentence."},
        "code": {**TEXT, "description": "A short name that programs compare."},
        "field": {"type": ["string", "null"], "description": "The field that is wrong."},
    },
}


def error_body(problem: Problem) -> dict[str, Any]:
    """Return the problem details. `code` and `field` are ours."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.message,
        "code": problem.code,
        "field": problem.field,
    }
