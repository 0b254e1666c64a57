"""The parameters that editors see are those that a job request checks, with the same types."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from imagefleet.producer.client.parameters import JobParameters
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.request import JobRequest

PARAMETERS = get_type_hints(JobParameters)
_ALSO_AS_TEXT = {"keep": {str}, "loras": {str}}
"""Parameters that a request keeps in another form, and that a caller may also write as a text."""
_SAME = {Sequence: list, tuple: list, Mapping: dict}
"""What a caller may give, and the types in which a request keeps it, as one type each."""


def _plain_types(annotation: Any) -> Iterator[type]:
    """Yield the classes of a union, without None, annotations, items, and kinds of str."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _plain_types(each)
    elif annotation is not NoneType:
        kind = origin or annotation
        kind = _SAME.get(kind, kind)
        yield str if issubclass(kind, StrEnum) else kind


def test_every_field_of_a_request_is_a_parameter() -> None:
    assert {*PARAMETERS, "prompt"} == {*JobRequest.model_fields}


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - {*INPUT_FIELDS}))
def test_a_parameter_has_the_type_of_its_field(name: str) -> None:
    field = get_type_hints(JobRequest, include_extras=True)[name]
    types = {*_plain_types(field)} | _ALSO_AS_TEXT.get(name, set())
    assert {*_plain_types(PARAMETERS[name])} == types


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_every_parameter_may_be_none(name: str) -> None:
    assert NoneType in get_args(PARAMETERS[name])
