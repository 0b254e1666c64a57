"""Read the rows of a table one at a time: text, CSV, JSON, Parquet, what other tools write, or an
iterable.

Input: a file, or an iterable of prompts or mappings. Output: the names of its columns, if they are
known in advance, and for each row a prompt, a mapping of columns, or the reason why it cannot be
read. This module depends on neither parameters nor plans. Memory holds one row, for Parquet and
Arrow one group of rows.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.a1111 import read_a1111, read_prompts, read_text
from imagefleet.producer.bulk.arrow_files import arrow_columns, read_arrow
from imagefleet.producer.bulk.comfyui import read_comfyui
from imagefleet.producer.bulk.csv_rows import csv_columns, read_csv
from imagefleet.producer.bulk.image_files import IMAGE_TYPES, read_image, read_images
from imagefleet.producer.bulk.json_rows import json_lines, json_rows
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.bulk.parquet_rows import parquet_columns, read_parquet
from imagefleet.producer.bulk.rows import Row, row_of
from imagefleet.producer.bulk.text_files import (
    COMPRESSED,
    NOTHING_SAID,
    FileOptions,
    open_lines,
    without_mark,
)
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.regular_files import open_regular


@dataclass(frozen=True, kw_only=True)
class Table:
    """An opened table."""

    name: str
    columns: Sequence[str] | None
    """None if only the rows show their columns; empty if every line is a prompt."""
    rows: Iterator[Row | None]
    """None stands for a blank line of a file. It is not a row, but it takes a row number."""
    sha256: Callable[[], str | None] = lambda: None
    """Returns the digest of the file; None for an iterable."""


def open_table(path: Path, name: str, options: FileOptions = NOTHING_SAID) -> Table:
    """Open a file. Its rows are read lazily.

    Args:
        name: the name of the file in messages.
        options: without a type, it is as the name ends.

    Raises:
        InvalidRequest: the file cannot be read or has an unknown type.
        ConfigurationError: the reader for this file type is not installed.
    """
    file_type = options.file_type or file_type_of(name)
    if options.file_type is None and file_type == "txt":
        file_type = UNNAMED_TEXT
    reader = _READERS[file_type]
    options = replace(options, file_type=file_type)
    try:
        open_regular(path).close()
    except OSError as error:
        raise InvalidRequest("input", name, error.strerror or "cannot be read") from None
    return Table(
        name=Path(name).name,
        columns=reader.columns(path, options),
        rows=_noting(reader.read(path, options), options.notes, Path(name).name),
        sha256=lambda: _sha256(path),
    )


def open_images(paths: Sequence[Path], name: str, options: FileOptions = NOTHING_SAID) -> Table:
    """Open images as one table with a row for each. Its digest is that of the list of theirs."""
    return Table(
        name=name,
        columns=None,
        rows=_noting(read_images(paths, options), options.notes, name),
        sha256=lambda: hashlib.sha256("\n".join(map(_sha256, paths)).encode()).hexdigest(),
    )


def _noting(rows: Iterator[Row | None], notes: Notes, name: str) -> Iterator[Row | None]:
    """Yield the rows, and then say what the reader has noted about them."""
    try:
        yield from rows
    finally:
        notes.warn(name)


def open_iterable(
    rows: Iterable[Any], name: str | None = None, notes: Notes | None = None
) -> Table:
    """Open an iterable of prompts or mappings, such as a Hugging Face dataset, or an open file,
    whose lines are prompts.

    Raises:
        InvalidRequest: it is a file that was not opened as text.
    """
    if isinstance(rows, io.TextIOBase):
        name, notes = type(rows).__name__, notes or Notes()
        return Table(
            name=name, columns=(), rows=_noting(read_prompts(rows, name, notes), notes, name)
        )
    if isinstance(rows, io.IOBase):
        limit = "is a file of bytes; open it as text, or pass its pathlib.Path"
        raise InvalidRequest("rows", type(rows).__name__, limit)
    return Table(
        name=name or type(rows).__name__,
        columns=getattr(rows, "column_names", None),  # of a Hugging Face dataset
        rows=(row_of(row) for row in rows),
    )


def file_type_of(name: str) -> str:
    """Return the type of a file by its name. Raise InvalidRequest if the type is not known."""
    suffix = _suffix(name)
    if suffix in _WORKBOOKS:
        raise InvalidRequest("input", name, "is a workbook; save it as CSV")
    if suffix not in _ENDS:
        known = ", ".join(f".{each}" for each in _ENDS)
        limit = (
            f"must end in {known}, perhaps with {', '.join(COMPRESSED)} behind it; --input-format "
            "(in Python input_format=) names the type"
        )
        raise InvalidRequest("input", name, limit)
    return suffix


def has_file_type(name: str, *, with_json: bool = False) -> bool:
    """Return whether the name ends as that of a table. An image is none.

    Args:
        with_json: whether a .json file is one. In a folder it is often what a program says about
            the tables beside it.
    """
    return _suffix(name) in (TABLE_ENDS if with_json else TABLE_ENDS - {"json"})


def is_image(name: str) -> bool:
    """Return whether the name ends as that of an image that may say how it was generated."""
    return Path(name).suffix.lower().removeprefix(".") in IMAGE_TYPES


def _suffix(name: str) -> str:
    """Return how a name ends, without the end that says how it is compressed."""
    path = Path(name)
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower().removeprefix(".")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_txt(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield a prompt per line, whatever it looks like. Invalid UTF-8 becomes lone surrogates, which
    are rejected later."""
    with open_lines(path, options) as lines:
        for row in _prompts(lines):
            if isinstance(row, str) and row.startswith("--prompt"):
                options.notes.say(_OPTIONS_AS_TEXT, "options")
            yield row


def _prompts(lines: Iterable[str]) -> Iterator[Row | None]:
    for line in map(without_mark, lines):
        yield line.rstrip("\r\n") if line.strip() else None


_OPTIONS_AS_TEXT: Final = (
    "lines that begin with --prompt are prompts as a whole; --input-format a1111 reads their "
    "options"
)


@dataclass(frozen=True)
class _Reader:
    """The functions that read files of one type."""

    read: Callable[[Path, FileOptions], Iterator[Row | None]]
    columns: Callable[[Path, FileOptions], Sequence[str] | None]
    """Returns the columns as in `Table`."""


UNNAMED_TEXT: Final = "text"
"""It is the type of a text file of which nobody says that all its lines are prompts."""
_READERS: Final = {
    UNNAMED_TEXT: _Reader(read_text, lambda *_: ()),
    "txt": _Reader(_read_txt, lambda *_: ()),
    "csv": _Reader(read_csv, csv_columns),
    "tsv": _Reader(read_csv, csv_columns),
    "jsonl": _Reader(json_lines, lambda *_: None),
    "ndjson": _Reader(json_lines, lambda *_: None),
    "json": _Reader(json_rows, lambda *_: None),
    "parquet": _Reader(read_parquet, parquet_columns),
    "arrow": _Reader(read_arrow, arrow_columns),
    "feather": _Reader(read_arrow, arrow_columns),
    **dict.fromkeys(IMAGE_TYPES, _Reader(read_image, lambda *_: None)),
    "a1111": _Reader(read_a1111, lambda *_: None),
    "comfyui": _Reader(read_comfyui, lambda *_: None),
}
FILE_TYPES: Final = tuple(each for each in _READERS if each != UNNAMED_TEXT)
"""The types of files that can be read."""
_ENDS: Final = tuple(each for each in FILE_TYPES if each not in ("a1111", "comfyui"))
"""The types that the ends of names say."""
_WORKBOOKS: Final = ("xlsx", "xlsm", "xls", "ods", "numbers")
TABLE_ENDS: Final = frozenset(_ENDS) - {*IMAGE_TYPES}
"""The names of tables end so."""
