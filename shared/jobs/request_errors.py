"""Turn what pydantic says of a wrong job request into an error with field, value and limit."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.foreign_names import hint, scheduler_hint

_NO_TEXT: Final = ("int_type", "float_type", "bool_type")
"""These errors of pydantic would read as if the text "7" were no number."""
_MIN_SIMILARITY: Final = 0.75
"""A name at least this similar to that of a parameter is taken for a typing error."""


def why_unknown(name: str, known: Iterable[str]) -> str:
    """Return what is wrong with a name that no parameter has: how it is called here, which one it
    is like, else which ones there are.

    Args:
        known: the names that can be given.
    """
    names = list(known)
    if called := hint(name, dict(zip(names, names, strict=True))):
        return called
    wrong = "is not a parameter of a job"
    if like := get_close_matches(name.lower(), names, 2, _MIN_SIMILARITY):
        return f"{wrong}; did you mean {' or '.join(like)}?"
    return f"{wrong}; the parameters are {', '.join(names)}"


def invalid_request(
    error: ValidationError, parameters: Mapping[str, Any], known: Iterable[str]
) -> InvalidRequest:
    """Return the error that names the first field that is unknown, else the first that is wrong.

    Args:
        parameters: what was validated.
        known: the names of all parameters of a job.
    """
    errors = error.errors(include_url=False)
    # A misspelled name comes before the parameter that is missing because of it.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    field = str(first["loc"][0]) if first["loc"] else "height"
    if first["type"] == "extra_forbidden":
        return InvalidRequest(field, parameters.get(field), why_unknown(field, known))
    limit = first["msg"].removeprefix("Value error, ")
    limit = limit[0].lower() + limit[1:]
    if first["type"] in _NO_TEXT and isinstance(parameters.get(field), str):
        limit += ", not text"
    if field == "scheduler":
        limit = scheduler_hint(parameters.get(field)) or limit
    return InvalidRequest(field, parameters.get(field), limit.replace("input should", "must"))
