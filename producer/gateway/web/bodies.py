"""Read the body of a request: one JSON object, or a form."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from imagefleet.producer.gateway.problems import Problem, wrong_field
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.text.printable import printable

_MAX_FILES: Final = 17
_MAX_FIELDS: Final = 100
_MAX_FIELD_BYTES: Final = 1_000_000
_MAX_VALUES: Final = 100_000
_SEPARATORS: Final = (b",", b"[", b"{")

M = TypeVar("M", bound=BaseModel)


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body. Raises Problem.

    Another media type is refused, because a browser sends such a body on behalf of any web page.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"Content-Type={kind!r}: must be application/json"
        raise Problem(415, "unsupported_media_type", message)
    try:
        parsed = parse_json(await request.body())
    except (ValueError, RecursionError) as error:
        message = f"the body is no JSON: {str(error)[:200]}"
        raise Problem(400, "invalid_json", message) from None
    if not isinstance(parsed, dict):
        raise Problem(400, "invalid_json", "the body must be a JSON object")
    return parsed


def parse_json(content: bytes) -> Any:
    """Return what JSON of a caller holds: no name twice, and no NaN.

    Raises ValueError, RecursionError.
    """
    if sum(map(content.count, _SEPARATORS)) > _MAX_VALUES:  # they would take seconds, for all
        raise ValueError(f"it must have at most {_MAX_VALUES:,} values")
    parsed = json.loads(
        content, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated_names
    )
    if b"\\u" in content:
        json.dumps(parsed, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return parsed


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what another program, as a proxy, may read in another way."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{printable(repeated, 80)!r} stands in it twice")
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


@dataclass(frozen=True, kw_only=True)
class Form:
    """A `multipart/form-data` request has this body."""

    fields: Mapping[str, str]
    files: Mapping[str, list[bytes]] = field(repr=False)
    """Each field has these files; `image[]` counts as `image`."""


async def read_form(request: Request) -> Form:
    """Return the fields and files of a form. Raises Problem."""
    fields: dict[str, str] = {}
    files: dict[str, list[bytes]] = {}
    limits = {"max_files": _MAX_FILES, "max_fields": _MAX_FIELDS, "max_part_size": _MAX_FIELD_BYTES}
    try:
        async with request.form(**limits) as form:
            for name, value in form.multi_items():
                plain = name.removesuffix("[]")
                if isinstance(value, UploadFile):
                    files.setdefault(plain, []).append(await _read(name, value))
                elif fields.setdefault(plain, value) != value:
                    raise wrong_field(plain, value, f"is given as {fields[plain][:80]!r}, too")
    except HTTPException as error:
        raise Problem(400, "invalid_form", f"the body is no form: {error.detail}") from None
    return Form(fields=fields, files=files)


async def _read(name: str, file: UploadFile) -> bytes:
    content = await file.read(MAX_INPUT_BYTES + 1)
    if len(content) > MAX_INPUT_BYTES:
        raise wrong_field(name, "a file", f"must have at most {MAX_INPUT_BYTES:,} bytes")
    return content


def check_fields(kind: type[M], fields: Mapping[str, Any]) -> M:
    """Return the fields of a body as a request of this kind. Raises Problem."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "body"
        limit = first["msg"].replace("Input should", "must")
        raise wrong_field(name, fields.get(name), limit[0].lower() + limit[1:]) from None
