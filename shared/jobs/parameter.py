"""Define a row of the table of job parameters: what the fleet knows of one beside its type.

The rows stand on the fields of `shared.jobs.request.JobRequest`, in `Annotated[type, Parameter]`.
`shared.jobs.parameter_lookups` reads them; everything that treats all parameters alike loops over
that table.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from imagefleet.shared.errors import InvalidRequest


def is_none(value: object) -> bool:
    """Return whether a parameter is not given. A field with `exclude_if=is_none` is not sent."""
    return value is None


def is_false(value: object) -> bool:
    """Return whether a parameter changes nothing, as None, 0, False or an empty text. A field with
    `exclude_if=is_false` is not sent."""
    return not value


def is_whole(value: object) -> bool:
    """Return whether a share leaves out nothing: None, or 1. A field with `exclude_if=is_whole` is
    not sent."""
    return value is None or value == 1


@dataclass(frozen=True)
class Parameter:
    """One row of the table. Its field in `JobRequest` has the name, the type and the limits.

    A value counts as used if it is sent: if the field's `exclude_if`, or else its default, does not
    leave it out.
    """

    about: str
    """A sentence for the typed keywords of the client. The help of commands has it too, unless
    there is a `help`. Other parameters stand in backquotes."""
    _: KW_ONLY
    help: str = ""
    """The help of the option on the command line, where that has to say something else."""
    flag: str = ""
    """The option on the command line. Empty: the name with hyphens."""
    given_as: str = ""
    """The type of what callers of the client give, as source. Empty: the type of the field."""
    since: int = 1
    """The oldest version of a job's message whose readers know the parameter."""
    rows_since: int | None = None
    """The same of a shard's message. None: rows of datasets do not have the parameter."""
    counted_as: str = ""
    """The field of a plan that counts the rows which use the parameter. Older workers refuse a plan
    that has it. Empty: it is not counted."""
    listed_as: str = ""
    """The field of a plan that lists what the rows use, in the place of `counted_as`."""
    needs: str = ""
    """The parameter without which this one is refused."""
    offered_by: str = ""
    """The field of an offer without which the parameter is refused. Empty: every model has it."""
    at_most: str = ""
    """The field of an offer that holds the largest value."""
    not_offered: str = "is not a parameter of the model {model}"
    """Why an offer refuses the parameter."""
    metadata: Literal["always", "of each image", "if used", "apart", ""] = ""
    """When the metadata of an image hold the value under this name. `of each image`: always, and
    each image of a job has another value. `apart`: in a form or a place of its own, by
    `worker.images.metadata`. Empty: never."""

    @property
    def is_always_recorded(self) -> bool:
        """Return whether the metadata of every image hold the value under this name."""
        return self.metadata in ("always", "of each image")


@cache
def table_of(model: type[BaseModel]) -> Mapping[str, Parameter]:
    """Return the rows on the fields of a model by the name of the field, in their order."""
    return MappingProxyType(
        {
            name: row
            for name, field in model.model_fields.items()
            for row in field.metadata
            if isinstance(row, Parameter)
        }
    )


def check_needs(request: BaseModel) -> None:
    """Raise InvalidRequest for a parameter of `request` that is given without what it needs."""
    for name, row in table_of(type(request)).items():
        if not row.needs or getattr(request, name) is None:
            continue
        if getattr(request, row.needs) is None:
            needed = "an image" if row.needs == "image" else row.needs
            raise InvalidRequest(name, getattr(request, name), f"needs {needed}")


def kind_of(annotation: Any) -> Any:
    """Return the type of a field without None, limits and checks: int for `Steps | None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return kind_of(get_args(annotation)[0])
    if origin in (Union, UnionType):
        kinds = {kind_of(each) for each in get_args(annotation)} - {NoneType}
        return kinds.pop() if len(kinds) == 1 else annotation
    return annotation
