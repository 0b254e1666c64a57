"""One row of an input, decided: what it asks for, or why it cannot be painted.

Goes in: a row as it was read. Comes out: its line in a shard's file of rows, how many pictures it
asks for and of which size. Most rows are a prompt and nothing else; they are looked at without
building a record, 1 µs each.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from json.encoder import encode_basestring
from pathlib import PurePath
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from imagefleet.producer.bulk.readers import RejectedRow, Row
from imagefleet.shared.bulk.plan import RowParameters, ShardRow, canonical_json, derive_seed
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.model import MAX_PROMPT_CHARACTERS, JobRequest
from imagefleet.shared.jobs.offers import Offer

Size = tuple[int | None, int | None]
"""Height and width in pixels; None is the model's own."""

MAX_EXTRA_BYTES: Final = 65_536
_COLUMNS: Final = ("prompt", *RowParameters.model_fields, "seed", "height", "width", "model")
"""What a column may decide. Every other one is carried beside the pictures."""
_COMPARED_FIELDS: Final = (*RowParameters.model_fields, "height", "width")
"""Beside prompt and seed, what two rows that ask for the same have in common."""
_INTEGER_FIELDS: Final = frozenset(
    {"num_inference_steps", "num_images_per_prompt", "seed", "height", "width"}
)
_MIN_SIMILARITY: Final = 0.85
"""From which on a column's name looks like a slip of the pen."""
_MAX_SHOWN_CHARS: Final = 60
_STORED_AS_TEXT: Final = (date, time, timedelta, Decimal, UUID, PurePath)
_MAX_DEPTH: Final = 64
"""Of objects and lists in a column that is carried along: pydantic reads some 200."""


@dataclass(frozen=True, kw_only=True)
class RowDefaults:
    """What a run gives to all its rows."""

    parameters: RowParameters
    size: Size
    model: str | None
    seed: int
    shard_size: int
    columns: Mapping[str, str]
    """Parameter to the column that holds it."""


class PlannedRow(NamedTuple):
    """A row that can be painted."""

    line: str
    duplicate_key: str
    """Rows that ask for the same have the same: the prompt, if that says it all."""
    images: int
    size: Size


class RowPlanner:
    """Decides the rows of one run."""

    def __init__(self, defaults: RowDefaults, offers: dict[str, Offer]) -> None:
        """Raises InvalidRequest: what holds for all rows is wrong."""
        self._defaults = defaults
        self._offers = offers
        self._common: dict[str, Any] = {
            **defaults.parameters.model_dump(exclude_none=True),
            "height": defaults.size[0],
            "width": defaults.size[1],
            "model": defaults.model,
            "seed": defaults.seed,
        }
        common = JobRequest.parse({"prompt": "any", **self._common})
        admit(common, offers)
        self._images = common.num_images_per_prompt
        self._common_values = {name: getattr(common, name) for name in _COMPARED_FIELDS}
        if self._images > defaults.shard_size:
            raise InvalidRequest(
                "shard_size", defaults.shard_size, "must hold the pictures of at least one row"
            )
        self._prompt = defaults.columns.get("prompt", "prompt")
        self._parameter_of = _parameter_by_column(defaults.columns)
        self._accepted_columns: set[str] = set()
        self._unseen_columns = {
            column: name for name, column in defaults.columns.items() if name != "prompt"
        }
        """Columns that no row had so far; a row without its prompt is told as wrong."""

    def check_columns(self) -> None:
        """After the last row: raises InvalidRequest if a parameter was to be taken from a column
        that none had."""
        for column, name in self._unseen_columns.items():
            raise InvalidRequest("column", f"{name}={column}", "no row has such a column")

    def plan_row(self, number: int, row: Row) -> PlannedRow | RejectedRow:
        """Row `number` of the input.

        Raises:
            InvalidRequest: a column looks like a mistyped parameter; no row can be trusted then.
        """
        if type(row) is dict and len(row) == 1 and isinstance(row.get(self._prompt), str):
            row = cast(str, row[self._prompt])
        if isinstance(row, str):
            if 0 < len(row) <= MAX_PROMPT_CHARACTERS and row.isprintable() and not row.isspace():
                seed = derive_seed(self._defaults.seed, number)
                line = f'{{"prompt":{encode_basestring(row)},"row":{number},"seed":{seed}}}'
                return PlannedRow(line, row, self._images, self._defaults.size)
            row = {self._prompt: row}
        if isinstance(row, RejectedRow):
            return row
        try:
            return self._plan_row(number, row)
        except _RowRejected as error:
            return error.wrong

    def _plan_row(self, number: int, row: Mapping[str, Any]) -> PlannedRow:
        chosen, extra = self._split_columns(row)
        if chosen.get("model", self._defaults.model) != self._defaults.model:
            raise _RowRejected("model", chosen["model"], "one run paints with one model")
        try:
            request = JobRequest.parse({**self._common, **chosen})
            admit(request, self._offers)
        except InvalidRequest as error:
            raise _RowRejected(error.field, error.value, error.limit) from None
        if request.num_images_per_prompt > self._defaults.shard_size:
            limit = f"must be at most the shard size, {self._defaults.shard_size}"
            raise _RowRejected("num_images_per_prompt", request.num_images_per_prompt, limit)
        decided = {name: getattr(request, name) for name in chosen if name in ShardRow.model_fields}
        size = (request.height, request.width)
        duplicate_key = self._duplicate_key(request, chosen.get("seed") is not None)
        decided.setdefault("seed", derive_seed(self._defaults.seed, number))
        decided["row"] = number
        if extra:
            decided["extra"] = extra
        return PlannedRow(
            canonical_json(decided).decode(), duplicate_key, request.num_images_per_prompt, size
        )

    def _duplicate_key(self, request: JobRequest, seeded: bool) -> str:
        """What is asked for, with what the run gives to all, without the columns carried along."""
        asked = {name: getattr(request, name) for name in _COMPARED_FIELDS}
        if not seeded and asked == self._common_values:
            return request.prompt
        if seeded:
            asked["seed"] = request.seed
        return "\0" + canonical_json({**asked, "prompt": request.prompt}).decode()

    def _split_columns(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What decides the pictures, and what is only carried along."""
        chosen: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for column in self._unseen_columns.keys() & row.keys():
            del self._unseen_columns[column]
        for column, value in row.items():
            if (name := self._parameter_of.get(column)) is None:
                if column not in self._accepted_columns:
                    self._check_column_name(column)
                extra[column] = _to_json_value(column, value)
            elif not _is_missing(value) or (name == "prompt" and value == ""):
                chosen[name] = _to_integer(value) if name in _INTEGER_FIELDS else value
        if "prompt" not in chosen:
            raise _RowRejected(self._prompt, None, "is missing")
        if extra and len(canonical_json(extra)) > MAX_EXTRA_BYTES:
            raise _RowRejected(
                "extra", "…", f"columns carried along hold over {MAX_EXTRA_BYTES} bytes"
            )
        return chosen, extra

    def _check_column_name(self, column: object) -> None:
        if not isinstance(column, str) or not column:
            raise _RowRejected("column", column, "must have a name")
        if column != escape_surrogates(column):
            raise _RowRejected("column", column, "its name is not UTF-8")
        plain = column.lower().replace("-", "_").replace(" ", "_")
        if like := difflib.get_close_matches(plain, _COLUMNS, 1, _MIN_SIMILARITY):
            raise InvalidRequest(
                "column",
                column,
                f"looks like {like[0]!r}; rename it, or take {like[0]} from it: --column "
                f"{like[0]}={column}, in Python columns={{{like[0]!r}: {column!r}}}",
            )
        self._accepted_columns.add(column)


class _RowRejected(Exception):
    """Nobody outside sees it."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = value if value is None or isinstance(value, str) else repr(value)
        self.wrong = RejectedRow(field, shown and shown[:_MAX_SHOWN_CHARS], reason)


def escape_surrogates(text: str) -> str:
    """`text` with what is left of broken UTF-8 as escapes, so that it can be written."""
    return text.encode("utf-8", "backslashreplace").decode()


def _parameter_by_column(renamed: Mapping[str, str]) -> dict[str, str]:
    """Column to parameter. Raises InvalidRequest."""
    for name, column in renamed.items():
        if name not in _COLUMNS:
            known = ", ".join(_COLUMNS)
            raise InvalidRequest(
                "column", f"{name}={column}", f"no such parameter; there are {known}"
            )
    return {renamed.get(name, name): name for name in _COLUMNS}


def _is_missing(value: object) -> bool:
    """An empty cell of a CSV file, or a missing value of a data frame."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _to_integer(value: object) -> object:
    """A whole number of a format that has none: a cell of a CSV file, a column with gaps."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _numpy_to_python(value: Any) -> Any:
    """Of numpy's kind, as lists and numbers; times as text, or those in nanoseconds, as pandas has
    them, would come out as bare numbers."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return (value.astype(str) if kind in ("m", "M") else value).tolist()


def _to_json_value(column: str, value: object, depth: int = 0) -> Any:
    """A value as JSON can hold it, and its readers can read it."""
    if depth > _MAX_DEPTH:
        raise _RowRejected(column, "…", f"must not be nested over {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            escape_surrogates(str(name)): _to_json_value(column, each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_to_json_value(column, each, depth + 1) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        raise _RowRejected(column, value[:_MAX_SHOWN_CHARS], "bytes cannot be carried along")
    if isinstance(value, _STORED_AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):  # of numpy
        return _to_json_value(column, _numpy_to_python(value), depth + 1)
    # the text of, say, a picture is its place in memory: the same rows would not make the same plan
    raise _RowRejected(
        column,
        type(value).__name__,
        "must be text, numbers, times, or lists and mappings of these, to be carried along",
    )
