"""Read the body of a request: one JSON object, or a form."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from imagefleet.producer.gateway.problems import Problem, wrong_field
from imagefleet.producer.gateway.web.callers import gateway_of
from imagefleet.producer.gateway.web.held_bytes import held_bytes
from imagefleet.producer.gateway.web.long_texts import cut_long_texts, put_in
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.text.printable import printable

_MAX_FILES: Final = 17
_MAX_FIELDS: Final = 100
_MAX_FIELD_BYTES: Final = 1_000_000
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 100
_LIMITS: Final = {
    "missing": "is required",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "too_short": "must not be empty",
}
"""It says in words of JSON what pydantic says of these errors in words of Python."""
_SEPARATORS: Final = (b",", b"[", b"{")
_COPIES_OF_WIDE_LETTERS: Final = 6
"""Python keeps each letter of a text in 4 bytes if one of them is as rare as an emoji. Such JSON is
held as the text and as the values in it, beside the copies that each body has."""

T = TypeVar("T")
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
        parsed = await _parse_body(request)
    except (ValueError, RecursionError) as error:
        message = f"the body is no JSON: {str(error)[:200]}"
        raise Problem(400, "invalid_json", message) from None
    if not isinstance(parsed, dict):
        raise Problem(400, "invalid_json", "the body must be a JSON object")
    return parsed


async def _parse_body(request: Request) -> Any:
    """Return what the JSON in the body holds. Raises ValueError, RecursionError, Problem.

    Nothing keeps the body, so its memory is free afterwards.
    """
    content = bytearray()
    async for part in request.stream():
        content += part
    short, texts = await off_loop(request, cut_long_texts, content)
    del content
    if held_bytes(request).count and not short.isascii():
        await held_bytes(request).take(len(short) * _COPIES_OF_WIDE_LETTERS)
    return put_in(await off_loop(request, parse_json, short), texts)


async def off_loop(request: Request, function: Callable[..., T], *args: object) -> T:
    """Return what a function makes of the body of a request: of a large one in a thread, so that
    other requests go on."""
    if not held_bytes(request).count:
        return function(*args)
    return await gateway_of(request).decoding.run(function, *args)


def parse_json(content: bytes) -> Any:
    """Return what JSON of a caller holds: no name twice, and no NaN.

    Raises ValueError, RecursionError.
    """
    if sum(map(content.count, _SEPARATORS)) > _MAX_VALUES:  # they would take seconds, for all
        raise ValueError(f"it must have at most {_MAX_VALUES:,} values")
    parsed = json.loads(
        content, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated_names
    )
    if sum(map(content.count, _SEPARATORS[1:])) > _MAX_DEPTH:
        _refuse_depth(parsed)
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


def _refuse_depth(value: Any) -> None:
    """Raise ValueError for what functions that call themselves cannot go through."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for each in level for inner in _inside(each) if _inside(inner)]
        if not level:
            return
    raise ValueError(f"its lists and objects are more than {_MAX_DEPTH} deep")


def _inside(value: Any) -> Iterable[Any]:
    """Return the values in a list or an object."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


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
        limit = _LIMITS.get(first["type"]) or first["msg"].replace("Input should", "must")
        raise wrong_field(name, fields.get(name), limit[0].lower() + limit[1:]) from None
