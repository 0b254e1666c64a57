"""Write errors as Replicate does: problem details of RFC 7807."""

from http import HTTPStatus
from typing import Any

from imagefleet.producer.gateway.problems import Problem


class ProblemDetails(dict[str, Any]):
    """The body of an error has this media type."""

    media_type = "application/problem+json"


def error_body(problem: Problem) -> ProblemDetails:
    """Return the problem details. `code` and `field` are ours."""
    return ProblemDetails(
        type="about:blank",
        title=HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=problem.message,
        code=problem.code,
        field=problem.field,
    )


def is_prediction_path(path: str) -> bool:
    """Return whether a path is one of these routes."""
    if path.startswith("/v1/models/"):
        return path.endswith("/predictions") or "/versions/" in path
    return path.startswith(("/v1/predictions", "/v1/webhooks/"))
