"""Write errors as the API of AUTOMATIC1111's web UI does."""

from typing import Any, Final

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.schemas import TEXT

ERROR_SCHEMA: Final = {
    "title": "WebUIError",
    "type": "object",
    "properties": {"error": TEXT, "detail": TEXT, "body": TEXT, "errors": TEXT},
    "required": ["error", "detail", "errors"],
}
"""It is the JSON schema of what `error_body` writes."""


def error_body(problem: Problem) -> dict[str, Any]:
    """Return the body of an error: `detail` is the sentence, `error` what programs compare."""
    return {
        "error": problem.code,
        "detail": problem.message,
        "body": "",
        "errors": problem.message,
    }
