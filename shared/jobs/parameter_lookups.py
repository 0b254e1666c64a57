"""Read the table of job parameters from the fields of `JobRequest`.

Output: the rows by name, and whether a value counts as used. What treats all parameters alike loops
over them: messages, admission, plans, columns of rows, options of commands, metadata.
"""

from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from imagefleet.shared.jobs.parameter import (
    Parameter,
    is_false,
    is_whole,
    kind_of,
    table_of,
)
from imagefleet.shared.jobs.request import JobRequest

PARAMETERS: Final[Mapping[str, Parameter]] = table_of(JobRequest)
"""The rows by the name of the parameter, in the order of the fields."""
ROW_PARAMETERS: Final = tuple(name for name, row in PARAMETERS.items() if row.rows_since)
"""The parameters that a run sets for all rows and that a row may override."""
ROW_COUNTS: Final[Mapping[str, str]] = {
    name: row.counted_as for name, row in PARAMETERS.items() if row.counted_as
}
"""The parameters whose rows a plan counts, and the field with the number."""
NEWEST_VERSION: Final = max(row.since for row in PARAMETERS.values())
"""The newest version of a job's message."""
NEWEST_ROWS_VERSION: Final = max(row.rows_since or 1 for row in PARAMETERS.values())
"""The newest version of a shard's message."""
_FIELDS: Final = JobRequest.model_fields
_TYPES: Final = get_type_hints(JobRequest, include_extras=True)


def is_used(name: str, value: Any) -> bool:
    """Return whether a job with this value of a parameter has it, and not only its default."""
    field = _FIELDS[name]
    if field.exclude_if is not None:
        return not field.exclude_if(value)
    return value is not None and value != field.default


def has_neutral_value(name: str) -> bool:
    """Return whether a parameter may be given and still change nothing, as 0 or False, or
    1 of a share."""
    return _FIELDS[name].exclude_if in (is_false, is_whole)


def default_of(name: str) -> Any:
    """Return the value of a parameter that is not given; None if it is the model's or drawn."""
    return _FIELDS[name].get_default(call_default_factory=False)


def type_of(name: str) -> Any:
    """Return the type of a parameter with its limits and checks."""
    return _TYPES[name]


def kind(name: str) -> Any:
    """Return the type of a parameter without None and limits, as int."""
    return kind_of(_TYPES[name])
