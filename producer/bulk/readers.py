"""Read the rows of any input one at a time: text, CSV, JSON lines, Parquet or an iterable.

A path, or an iterable of prompts or mappings, goes in. The names of its columns come out, if they
are known in advance, and for each row a prompt, a mapping of columns, or the reason why it cannot
be read. This module knows no parameters and no plan. Memory holds one row, for Parquet one row
group.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

from imagefleet.shared.bulk.plan import Source
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.extras import how_to_install

_BATCH_ROWS: Final = 1_000
_MAX_SHOWN_CHARS: Final = 60
"""Maximum characters of a wrong value in an error."""


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that cannot be read or planned, with the reason."""

    field: str
    value: str | None
    """None if the field has no value."""
    reason: str


Row = str | Mapping[str, Any] | RejectedRow
Rows = str | Path | Iterable[str | Mapping[str, Any]]
"""A path, or an iterable of rows, such as a Hugging Face dataset."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """An opened input."""

    source: Source
    columns: Sequence[str] | None
    """None if only the rows show their columns; empty if every line is a prompt."""
    rows: Iterator[Row | None]
    """None stands for a blank line of a file. It is not a row, but it takes a row number."""


def open_rows(rows: Rows) -> Input:
    """Open the input. Its rows are read lazily.

    Raises:
        InvalidRequest: the file does not exist or has an unknown type, or `rows` is not iterable.
        ConfigurationError: the reader for this file type is not installed.
    """
    if isinstance(rows, str | Path):
        return _open_file(Path(rows))
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        limit = "must be the path of a file, or an iterable of prompts or mappings"
        raise InvalidRequest("rows", rows, limit)
    return Input(
        source=Source(name=type(rows).__name__),
        columns=getattr(rows, "column_names", None),  # of a Hugging Face dataset
        rows=(_row_of(row) for row in rows),
    )


def _open_file(path: Path) -> Input:
    file_type = _FILE_TYPES.get(path.suffix.lower())
    if file_type is None:
        raise InvalidRequest("input", str(path), f"must end in {', '.join(_FILE_TYPES)}")
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest("input", str(path), error.strerror or "cannot be read") from None
    source = Source(name=path.name, sha256=sha256)
    return Input(source=source, columns=file_type.columns(path), rows=file_type.read(path))


def _read_txt(path: Path) -> Iterator[Row | None]:
    """Yield a prompt per line. Invalid UTF-8 becomes lone surrogates, which are rejected later."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n") if line.strip() else None


def _read_jsonl(path: Path) -> Iterator[Row | None]:
    """Yield a JSON object or string per line."""
    loads = json.loads
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line in file:
            if line.isspace():
                yield None
                continue
            try:
                yield _row_of(loads(line))
            except (ValueError, RecursionError) as error:
                yield RejectedRow("line", line[:_MAX_SHOWN_CHARS].strip(), f"is not JSON: {error}")


def _read_csv(path: Path) -> Iterator[Row | None]:
    """Yield a mapping per row of a file with a header. An empty cell means no value.

    Raises:
        InvalidRequest: two columns have one name, or a quote is never closed.
    """
    with _open_csv(path) as reader:
        header = _header(reader, path)
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

    def __init__(self, file: Iterable[str]) -> None:
        self._reader = csv.reader(self._remember_line(file), strict=True)
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
def _open_csv(path: Path) -> Iterator[_CsvReader]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        yield _CsvReader(file)


def _csv_columns(path: Path) -> list[str]:
    with _open_csv(path) as reader:
        return _header(reader, path)


def _header(reader: _CsvReader, path: Path) -> list[str]:
    """Read the header: the first line that is not blank."""
    try:
        header = next((cells for cells in reader if cells is not None), [])
    except csv.Error as error:
        raise InvalidRequest("input", str(path), f"its header is not CSV: {error}") from None
    for name in header:
        if name and header.count(name) > 1:
            raise InvalidRequest("column", name, "appears twice in the header")
    return header


def _read_parquet(path: Path) -> Iterator[Row | None]:
    with _open_parquet(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS):
            yield from batch.to_pylist()


def _parquet_columns(path: Path) -> list[str]:
    with _open_parquet(path) as file:
        return list(file.schema_arrow.names)


@contextmanager
def _open_parquet(path: Path) -> "Iterator[ParquetFile]":
    try:
        from pyarrow import ArrowException, ArrowInvalid, parquet
    except ImportError:
        raise ConfigurationError(f"Parquet needs pyarrow; {how_to_install('dataset')}") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (ArrowInvalid, ArrowException, OSError) as error:
        sentence = str(error).splitlines()[0]
        limit = f"is not a complete Parquet file: {sentence}"
        raise InvalidRequest("input", str(path), limit) from None


def _row_of(row: object) -> Row:
    if isinstance(row, str):
        return row
    if isinstance(row, Mapping):
        return row
    return RejectedRow(
        "row", repr(row)[:_MAX_SHOWN_CHARS], "must be a prompt, or an object of columns"
    )


@dataclass(frozen=True)
class _FileType:
    """The functions that read files with one suffix."""

    read: Callable[[Path], Iterator[Row | None]]
    columns: Callable[[Path], Sequence[str] | None]
    """Returns the columns as in `Input`."""


_FILE_TYPES: Final = {
    ".txt": _FileType(_read_txt, lambda path: ()),
    ".csv": _FileType(_read_csv, _csv_columns),
    ".jsonl": _FileType(_read_jsonl, lambda path: None),
    ".parquet": _FileType(_read_parquet, _parquet_columns),
}
