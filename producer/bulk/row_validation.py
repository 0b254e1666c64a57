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
from imagefleet.shared.bulk.plan import RowParameters, ShardRow, canonical, derived_seed
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.model import MAX_PROMPT_CHARACTERS, JobRequest
from imagefleet.shared.jobs.offers import Offer

Size = tuple[int | None, int | None]
"""Height and width in pixels; None is the model's own."""

MAX_EXTRA_BYTES: Final = 65_536
_COLUMNS: Final = ("prompt", *RowParameters.model_fields, "seed", "height", "width", "model")
"""What a column may decide. Every other one is carried beside the pictures."""
_ASKED: Final = (*RowParameters.model_fields, "height", "width")
"""Beside prompt and seed, what two rows that ask for the same have in common."""
_WHOLE: Final = frozenset(
    {"num_inference_steps", "num_images_per_prompt", "seed", "height", "width"}
)
_LIKENESS: Final = 0.85
"""From which on a column's name looks like a slip of the pen."""
_SHOWN: Final = 60
_TOLD_AS_TEXT: Final = (date, time, timedelta, Decimal, UUID, PurePath)
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
    same_as: str
    """Rows that ask for the same have the same: the prompt, if that says it all."""
    images: int
    size: Size


class RowPlanner:
    """Decides the rows of one run."""

    def __init__(self, order: RowDefaults, offers: dict[str, Offer]) -> None:
        """Raises InvalidRequest: what holds for all rows is wrong."""
        self._order = order
        self._offers = offers
        self._common: dict[str, Any] = {
            **order.parameters.model_dump(exclude_none=True),
            "height": order.size[0],
            "width": order.size[1],
            "model": order.model,
            "seed": order.seed,
        }
        common = JobRequest.parse({"prompt": "any", **self._common})
        admit(common, offers)
        self._images = common.num_images_per_prompt
        self._asked = {name: getattr(common, name) for name in _ASKED}
        if self._images > order.shard_size:
            raise InvalidRequest(
                "shard_size", order.shard_size, "must hold the pictures of at least one row"
            )
        self._prompt = order.columns.get("prompt", "prompt")
        self._parameter_of = _columns(order.columns)
        self._harmless: set[str] = set()
        self._unseen = {column: name for name, column in order.columns.items() if name != "prompt"}
        """Columns that no row had so far; a row without its prompt is told as wrong."""

    def check_columns(self) -> None:
        """After the last row: raises InvalidRequest if a parameter was to be taken from a column
        that none had."""
        for column, name in self._unseen.items():
            raise InvalidRequest("column", f"{name}={column}", "no row has such a column")

    def decide(self, number: int, row: Row) -> PlannedRow | RejectedRow:
        """Row `number` of the input.

        Raises:
            InvalidRequest: a column looks like a mistyped parameter; no row can be trusted then.
        """
        if type(row) is dict and len(row) == 1 and isinstance(row.get(self._prompt), str):
            row = cast(str, row[self._prompt])
        if isinstance(row, str):
            if 0 < len(row) <= MAX_PROMPT_CHARACTERS and row.isprintable() and not row.isspace():
                seed = derived_seed(self._order.seed, number)
                line = f'{{"prompt":{encode_basestring(row)},"row":{number},"seed":{seed}}}'
                return PlannedRow(line, row, self._images, self._order.size)
            row = {self._prompt: row}
        if isinstance(row, RejectedRow):
            return row
        try:
            return self._decide(number, row)
        except _WrongRow as error:
            return error.wrong

    def _decide(self, number: int, row: Mapping[str, Any]) -> PlannedRow:
        chosen, extra = self._sort(row)
        if chosen.get("model", self._order.model) != self._order.model:
            raise _WrongRow("model", chosen["model"], "one run paints with one model")
        try:
            request = JobRequest.parse({**self._common, **chosen})
            admit(request, self._offers)
        except InvalidRequest as error:
            raise _WrongRow(error.field, error.value, error.limit) from None
        if request.num_images_per_prompt > self._order.shard_size:
            limit = f"must be at most the shard size, {self._order.shard_size}"
            raise _WrongRow("num_images_per_prompt", request.num_images_per_prompt, limit)
        decided = {name: getattr(request, name) for name in chosen if name in ShardRow.model_fields}
        size = (request.height, request.width)
        same_as = self._same_as(request, chosen.get("seed") is not None)
        decided.setdefault("seed", derived_seed(self._order.seed, number))
        decided["row"] = number
        if extra:
            decided["extra"] = extra
        return PlannedRow(canonical(decided).decode(), same_as, request.num_images_per_prompt, size)

    def _same_as(self, request: JobRequest, seeded: bool) -> str:
        """What is asked for, with what the run gives to all, without the columns carried along."""
        asked = {name: getattr(request, name) for name in _ASKED}
        if not seeded and asked == self._asked:
            return request.prompt
        if seeded:
            asked["seed"] = request.seed
        return "\0" + canonical({**asked, "prompt": request.prompt}).decode()

    def _sort(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What decides the pictures, and what is only carried along."""
        chosen: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for column in self._unseen.keys() & row.keys():
            del self._unseen[column]
        for column, value in row.items():
            if (name := self._parameter_of.get(column)) is None:
                if column not in self._harmless:
                    self._look_at(column)
                extra[column] = _plain(column, value)
            elif not _is_left_out(value) or (name == "prompt" and value == ""):
                chosen[name] = _whole(value) if name in _WHOLE else value
        if "prompt" not in chosen:
            raise _WrongRow(self._prompt, None, "is missing")
        if extra and len(canonical(extra)) > MAX_EXTRA_BYTES:
            raise _WrongRow(
                "extra", "…", f"columns carried along hold over {MAX_EXTRA_BYTES} bytes"
            )
        return chosen, extra

    def _look_at(self, column: object) -> None:
        if not isinstance(column, str) or not column:
            raise _WrongRow("column", column, "must have a name")
        if column != readable(column):
            raise _WrongRow("column", column, "its name is not UTF-8")
        plain = column.lower().replace("-", "_").replace(" ", "_")
        if like := difflib.get_close_matches(plain, _COLUMNS, 1, _LIKENESS):
            raise InvalidRequest(
                "column",
                column,
                f"looks like {like[0]!r}; rename it, or take {like[0]} from it: --column "
                f"{like[0]}={column}, in Python columns={{{like[0]!r}: {column!r}}}",
            )
        self._harmless.add(column)


class _WrongRow(Exception):
    """Nobody outside sees it."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = value if value is None or isinstance(value, str) else repr(value)
        self.wrong = RejectedRow(field, shown and shown[:_SHOWN], reason)


def readable(text: str) -> str:
    """`text` with what is left of broken UTF-8 as escapes, so that it can be written."""
    return text.encode("utf-8", "backslashreplace").decode()


def _columns(renamed: Mapping[str, str]) -> dict[str, str]:
    """Column to parameter. Raises InvalidRequest."""
    for name, column in renamed.items():
        if name not in _COLUMNS:
            known = ", ".join(_COLUMNS)
            raise InvalidRequest(
                "column", f"{name}={column}", f"no such parameter; there are {known}"
            )
    return {renamed.get(name, name): name for name in _COLUMNS}


def _is_left_out(value: object) -> bool:
    """An empty cell of a CSV file, or a missing value of a data frame."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _whole(value: object) -> object:
    """A whole number of a format that has none: a cell of a CSV file, a column with gaps."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _told(value: Any) -> Any:
    """Of numpy's kind, as lists and numbers; times as text, or those in nanoseconds, as pandas has
    them, would come out as bare numbers."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return (value.astype(str) if kind in ("m", "M") else value).tolist()


def _plain(column: str, value: object, depth: int = 0) -> Any:
    """A value as JSON can hold it, and its readers can read it."""
    if depth > _MAX_DEPTH:
        raise _WrongRow(column, "…", f"must not be nested over {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            readable(str(name)): _plain(column, each, depth + 1) for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(column, each, depth + 1) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        raise _WrongRow(column, value[:_SHOWN], "bytes cannot be carried along")
    if isinstance(value, _TOLD_AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):  # of numpy
        return _plain(column, _told(value), depth + 1)
    # the text of, say, a picture is its place in memory: the same rows would not make the same plan
    raise _WrongRow(
        column,
        type(value).__name__,
        "must be text, numbers, times, or lists and mappings of these, to be carried along",
    )
