"""Say with which HTTP status an error is answered. Each dialect writes the body in its own form."""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.shared.errors import (
    BrokerUnavailable,
    CallbackRefused,
    ImagefleetError,
    InvalidInput,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    PlanConflict,
    QueueFull,
    ResultTimeout,
    StorageUnavailable,
    UnknownJob,
    UnknownRun,
)
from imagefleet.shared.text.printable import mask_credentials

STOPPING: Final = "stopping"
"""It is the code of the problem that this gateway ends."""
_AWAY_RETRY_S: Final = 1
_FULL_RETRY_S: Final = 5
_CALLERS_FAULT: Final = frozenset({"invalid_request", "invalid_input", "expired"})
"""Codes of failed jobs whose cause is the request."""
_STATUSES: Final[dict[type[ImagefleetError], tuple[int, float | None]]] = {
    InvalidRequest: (400, None),
    CallbackRefused: (400, None),
    UnknownJob: (404, None),
    UnknownRun: (404, None),
    PlanConflict: (409, None),
    JobCancelled: (409, None),
    InvalidInput: (410, None),
    QueueFull: (429, _FULL_RETRY_S),
    BrokerUnavailable: (503, _AWAY_RETRY_S),
    StorageUnavailable: (503, _AWAY_RETRY_S),
    ResultTimeout: (504, _AWAY_RETRY_S),
}
"""HTTP status of an error, and seconds after which the same request may succeed. Others are 500."""


class Problem(Exception):
    """A request is answered with an error.

    Attributes:
        status: the HTTP status.
        code: a short name that programs compare.
        message: one sentence that names the field, the value and the limit.
        field: the field of the request that is wrong; None: none of them.
        retry_after_s: seconds after which the same request may succeed; None: it is of no use.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        self.code: Final = code
        self.message: Final = message
        self.field: Final = field
        self.retry_after_s: Final = retry_after_s


def wrong_field(field: str, value: object, limit: str) -> Problem:
    """Return the problem of a field with a wrong value."""
    return problem_of(InvalidRequest(field, value, limit))


def wrong_parameter(
    error: InvalidRequest, names: Mapping[str, str], fields: Mapping[str, Any]
) -> Problem:
    """Return the problem of a wrong parameter of a job, as the request has it.

    Args:
        names: those of the request, by those of the parameters.
        fields: those of the request.
    """
    name = names.get(error.field)
    if name is None:
        return problem_of(error)
    return wrong_field(name, fields.get(name, error.value), error.limit)


def unknown(what: str, name: str) -> Problem:
    """Return the problem of something that does not exist, or belongs to another tenant."""
    return Problem(404, "not_found", f"there is no {what} {name!r}")


def stopping() -> Problem:
    """Return the problem of a gateway that ends. Another one, or the next, can answer."""
    return Problem(503, STOPPING, "this gateway ends; ask again", retry_after_s=_AWAY_RETRY_S)


def problem_of(error: ImagefleetError) -> Problem:
    """Return the problem for an error of imagefleet."""
    message = mask_credentials(str(error))
    if isinstance(error, JobFailed):
        status = 400 if error.failure_code in _CALLERS_FAULT else 500
        return Problem(status, error.failure_code, message)
    kinds = (_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
    status, retry_after_s = next(kinds, (500, None))
    field = error.field if isinstance(error, InvalidRequest) else None
    return Problem(status, error.code, message, field=field, retry_after_s=retry_after_s)
