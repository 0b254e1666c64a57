"""Read rows as jobs: a file is read with the readers of datasets, and each row is one job.

Input: an open file of bytes. Output: the parameters of each job, all of them checked. This module
submits nothing.
"""

import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from imagefleet.producer.bulk.a1111 import holds_infotext
from imagefleet.producer.bulk.readers import UNNAMED_TEXT, Table, open_table
from imagefleet.producer.bulk.row_cells import converted, is_missing
from imagefleet.producer.bulk.rows import RejectedRow, Row
from imagefleet.producer.bulk.text_files import FileOptions, error_named, open_text, without_mark
from imagefleet.producer.connection.input_images import (
    NOT_YET_UPLOADED,
    path_or_address,
)
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.request import JobRequest

_HEAD_CHARACTERS: Final = 1 << 16
_TEXT_TYPES: Final = ("txt", "a1111", UNNAMED_TEXT)
"""Rows of these are lines of the file, unless it holds infotexts."""
_OR_TEXT: Final = (
    "; it is read as JSON because of how it begins, and --input-format txt takes its lines for "
    "prompts"
)


def read_jobs(
    file: BinaryIO,
    name: str,
    options: FileOptions,
    common: Mapping[str, Any],
    ignored: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the parameters of the job of each row of a file.

    Args:
        name: the name of the file in messages.
        options: without a type, a file that begins with `{` or `[` is JSON, another one is text.
        common: parameters of all jobs, with which the rows are checked.
        ignored: columns that are left out.

    Raises:
        InvalidRequest: the file cannot be read, holds no row, or a row is wrong; the error names
            its line or number.
        ConfigurationError: the reader for this type is not installed.
    """
    is_empty = True
    with _opened(file, name, options) as (table, rows_are_lines):
        for number, row in enumerate(table.rows):
            if row is None:
                continue
            is_empty = False
            place = f"line {number + 1}" if rows_are_lines else f"row {number}"
            yield _job(row, place, common, ignored)
    if is_empty:
        raise InvalidRequest("prompt", name, "standard input holds no prompt")


@contextmanager
def _opened(file: BinaryIO, name: str, options: FileOptions) -> Iterator[tuple[Table, bool]]:
    """Copy a file, because some types are read twice, or from the end. Return its table, and
    whether each line of the file is a row."""
    with tempfile.NamedTemporaryFile(prefix="imagefleet-input-") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        path = Path(copy.name)
        with error_named(path, name):
            file_type = options.file_type or _type_of(path, options)
            is_guess = options.file_type is None and file_type == "json"
            with error_named(path, name, _OR_TEXT if is_guess else ""):
                rows_are_lines = file_type == "txt" or (
                    file_type in _TEXT_TYPES and not holds_infotext(path, options)
                )
                options = replace(options, file_type=file_type)
                yield open_table(path, name, options), rows_are_lines


def _type_of(path: Path, options: FileOptions) -> str:
    with open_text(path, options) as file:
        head = without_mark(file.read(_HEAD_CHARACTERS)).lstrip()
    return "json" if head.startswith(("{", "[")) else UNNAMED_TEXT


def _job(
    row: Row, place: str, common: Mapping[str, Any], ignored: Collection[str]
) -> dict[str, Any]:
    """Return the parameters of a row. Raise InvalidRequest with the place if they are wrong."""
    try:
        if isinstance(row, RejectedRow):
            raise InvalidRequest(row.field, row.value, row.reason)
        own = _parameters({"prompt": row} if isinstance(row, str) else row, ignored)
        checked = _with_stand_ins({**common, **own})
        checked.pop("id", None)
        JobRequest.parse(checked)
        return own
    except InvalidRequest as error:
        limit = error.limit
        if isinstance(row, Mapping) and error.field in row and error.field not in PARAMETERS:
            column = shlex.quote(error.field)
            limit = f"{limit}; --ignore-column {column} leaves the column out"
        raise InvalidRequest(f"{place}: {error.field}", error.value, limit) from None


def _parameters(row: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Return the cells that hold something, as the parameters need them."""
    own: dict[str, Any] = {}
    for name, value in row.items():
        if name in ignored or (is_missing(value) and (name, value) != ("prompt", "")):
            continue
        if name in INPUT_FIELDS and isinstance(value, str):
            own[name] = path_or_address(name, value, Path())
        else:
            own[name] = converted(name, value) if name in PARAMETERS else value
    return own


def _with_stand_ins(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with an address for each file that is not uploaded yet."""
    files = [name for name in INPUT_FIELDS if not isinstance(parameters.get(name, ""), str)]
    return {**parameters, **dict.fromkeys(files, NOT_YET_UPLOADED)}
