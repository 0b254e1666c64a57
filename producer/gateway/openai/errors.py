"""Write errors as the OpenAI API does."""

from typing import Any, Final

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.schemas import TEXT_OR_NULL

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}

ERROR_SCHEMA: Final = {
    "title": "OpenAIError",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": TEXT_OR_NULL | {"description": "The field that is wrong."},
                "code": TEXT_OR_NULL,
            },
        }
    },
}


def error_body(problem: Problem) -> dict[str, Any]:
    """Return the envelope `{"error": …}`."""
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": problem.message,
            "type": _TYPES.get(problem.status, kind),
            "param": problem.field,
            "code": problem.code,
        }
    }
