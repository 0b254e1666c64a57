"""Read the rows of a table one at a time: text, CSV, JSON lines, Parquet or an iterable.

Input: a file, or an iterable of prompts or mappings. Output: the names of its columns, if they are
known in advance, and for each row a prompt, a mapping of columns, or the reason why it cannot be
read. This module depends on neither parameters nor plans. Memory holds one row, for Parquet one row
group.
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from imagefleet.producer.bulk.json_rows import json_lines, json_rows
from imagefleet.producer.bulk.parquet_rows import parquet_columns, read_parquet
from imagefleet.producer.bulk.rows import RejectedRow, Row, row_of
from imagefleet.producer.bulk.text_files import (
    COMPRESSED,
    NOTHING_SAID,
    FileOptions,
    open_lines,
    without_mark,
)
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.regular_files import open_regular

_OTHER_DELIMITERS: Final = {";": "';'", "\t": "$'\\t'", "|": "'|'"}
"""These stand between the columns of some CSV files; a shell writes them as the values do."""


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
    options = replace(options, file_type=file_type)
    reader = _READERS[file_type]
    try:
        open_regular(path).close()
    except OSError as error:
        raise InvalidRequest("input", name, error.strerror or "cannot be read") from None
    return Table(
        name=Path(name).name,
        columns=reader.columns(path, options),
        rows=reader.read(path, options),
        sha256=lambda: _sha256(path),
    )


def open_iterable(rows: Iterable[Any], name: str | None = None) -> Table:
    """Open an iterable of prompts or mappings, such as a Hugging Face dataset, or an open file,
    whose lines are prompts.

    Raises:
        InvalidRequest: it is a file that was not opened as text.
    """
    if isinstance(rows, io.TextIOBase):
        return Table(name=type(rows).__name__, columns=(), rows=_prompts(rows))
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
    if suffix not in _READERS:
        known = ", ".join(f".{each}" for each in FILE_TYPES)
        limit = (
            f"must end in {known}, perhaps with {', '.join(COMPRESSED)} behind it; --input-format "
            "(in Python input_format=) names the type"
        )
        raise InvalidRequest("input", name, limit)
    return suffix


def has_file_type(name: str, *, with_json: bool = False) -> bool:
    """Return whether the name ends as that of a table.

    Args:
        with_json: whether a .json file is one. In a folder it is often what a program says about
            the tables beside it.
    """
    return _suffix(name) in (_READERS.keys() if with_json else _READERS.keys() - {"json"})


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
    """Yield a prompt per line. Invalid UTF-8 becomes lone surrogates, which are rejected later."""
    with open_lines(path, options) as lines:
        yield from _prompts(lines)


def _prompts(lines: Iterable[str]) -> Iterator[Row | None]:
    for line in map(without_mark, lines):
        yield line.rstrip("\r\n") if line.strip() else None


def _read_csv(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield a mapping per row of a file with a header. An empty cell means no value.

    Raises:
        InvalidRequest: two columns have one name, a quote is never closed, a row of several lines
            is not CSV, or a cell has more than csv's limit of 131,072 characters.
    """
    with _open_csv(path, options) as reader:
        header = _header(reader, path, options)
        while True:
            first_line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if "end of data" in str(error):
                    limit = f"a quote in the row at line {first_line} is never closed"
                    raise InvalidRequest("input", str(path), limit) from None
                if reader.line_num > first_line or "field limit" in str(error):
                    # The reader takes the next line for a new row, also in the middle of a quote.
                    limit = f"the row at line {first_line} is not CSV: {error}"
                    raise InvalidRequest("input", str(path), limit) from None
                yield RejectedRow("line", str(first_line), f"is not CSV: {error}")
                continue
            if cells is None:
                yield None
            elif len(cells) > len(header):
                reason = f"has {len(cells)} cells, the header has {len(header)}"
                yield RejectedRow("line", str(reader.line_num), reason)
            else:
                yield dict(zip(header, cells, strict=False))


class _CsvReader:
    """A `csv.reader` that yields None for a blank line, and a row for a quoted blank cell.

    `csv.reader` gives equal cells for a line of spaces and for a quoted cell of spaces.
    """

    def __init__(self, file: Iterable[str], delimiter: str) -> None:
        lines = self._remember_line(file)
        self._reader = csv.reader(lines, strict=True, delimiter=delimiter)
        self._line = ""

    @property
    def line_num(self) -> int:
        """Return the number of the last line read, from 1."""
        return self._reader.line_num

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[str] | None:
        """Return the next row. After csv.Error, reading can continue."""
        cells = next(self._reader)
        return None if self._line.isspace() else cells

    def _remember_line(self, file: Iterable[str]) -> Iterator[str]:
        for line in file:
            self._line = line
            yield line


@contextmanager
def _open_csv(path: Path, options: FileOptions) -> Iterator[_CsvReader]:
    default = "\t" if options.file_type == "tsv" else ","
    with open_lines(path, options, any_line_end=True) as lines:
        yield _CsvReader(lines, options.delimiter or default)


def _csv_columns(path: Path, options: FileOptions) -> list[str]:
    with _open_csv(path, options) as reader:
        return _header(reader, path, options)


def _header(reader: _CsvReader, path: Path, options: FileOptions) -> list[str]:
    """Read the header: the first line that is not blank."""
    try:
        header = next((cells for cells in reader if cells is not None), [])
    except csv.Error as error:
        raise InvalidRequest("input", str(path), f"its header is not CSV: {error}") from None
    for name, times in Counter(header).items():
        if name and times > 1:
            raise InvalidRequest("column", name, "appears twice in the header")
    if len(header) == 1 and options.delimiter is None:
        for mark, shown in _OTHER_DELIMITERS.items():
            if mark in header[0]:
                limit = (
                    f"has a header of one column that holds {shown}; if that is between two "
                    f"columns, name it with --delimiter {shown} (in Python delimiter={mark!r})"
                )
                raise InvalidRequest("input", str(path), limit)
    return header


@dataclass(frozen=True)
class _Reader:
    """The functions that read files of one type."""

    read: Callable[[Path, FileOptions], Iterator[Row | None]]
    columns: Callable[[Path, FileOptions], Sequence[str] | None]
    """Returns the columns as in `Table`."""


_READERS: Final = {
    "txt": _Reader(_read_txt, lambda *_: ()),
    "csv": _Reader(_read_csv, _csv_columns),
    "tsv": _Reader(_read_csv, _csv_columns),
    "jsonl": _Reader(json_lines, lambda *_: None),
    "ndjson": _Reader(json_lines, lambda *_: None),
    "json": _Reader(json_rows, lambda *_: None),
    "parquet": _Reader(read_parquet, parquet_columns),
}
FILE_TYPES: Final = tuple(_READERS)
"""The types of files that can be read, which are also the ends of their names."""
