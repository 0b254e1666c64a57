"""Read the rows of a table one at a time: text, CSV, JSON lines, Parquet or an iterable.

Input: a file, or an iterable of prompts or mappings. Output: the names of its columns, if they are
known in advance, and for each row a prompt, a mapping of columns, or the reason why it cannot be
read. This module depends on neither parameters nor plans. Memory holds one row, for Parquet one row
group.
"""

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage.regular_files import open_regular
from imagefleet.shared.text.printable import mask_credentials

_BATCH_ROWS: Final = 1_000
_MAX_SHOWN_CHARS: Final = 60
"""An error shows at most this many characters of a wrong value."""
_MAX_MASKED_CHARS: Final = 300
"""Characters of a wrong value in which credentials are looked for. At worst the search takes the
cube of their number, and a stranger may have written them."""
_REST_OF_CREDENTIALS: Final = re.compile(r"[^\s'\"]*@")


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that cannot be read or planned, with the reason."""

    field: str
    value: str | None
    """None if the field has no value."""
    reason: str


def shown_value(value: str) -> str:
    """Return the beginning of the value of a rejected row, without credentials of addresses."""
    head = value[:_MAX_MASKED_CHARS]
    if _REST_OF_CREDENTIALS.match(value, _MAX_MASKED_CHARS):
        head += "@"  # else the first half of a long password would not be masked
    return mask_credentials(head)[:_MAX_SHOWN_CHARS]


Row = str | Mapping[str, Any] | RejectedRow


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


def open_table(path: Path, name: str, file_type: str | None = None) -> Table:
    """Open a file. Its rows are read lazily.

    Args:
        name: the name of the file in messages.
        file_type: one of `FILE_TYPES`; None: as the name ends.

    Raises:
        InvalidRequest: the file cannot be read or has an unknown type.
        ConfigurationError: the reader for this file type is not installed.
    """
    reader = _READERS[file_type or file_type_of(name)]
    try:
        open_regular(path).close()
    except OSError as error:
        raise InvalidRequest("input", name, error.strerror or "cannot be read") from None
    return Table(
        name=Path(name).name,
        columns=reader.columns(path),
        rows=reader.read(path),
        sha256=lambda: _sha256(path),
    )


def open_iterable(rows: Iterable[Any], name: str | None = None) -> Table:
    """Open an iterable of prompts or mappings, such as a Hugging Face dataset."""
    return Table(
        name=name or type(rows).__name__,
        columns=getattr(rows, "column_names", None),  # of a Hugging Face dataset
        rows=(_row_of(row) for row in rows),
    )


def file_type_of(name: str) -> str:
    """Return the type of a file by its name. Raise InvalidRequest if the type is not known."""
    suffix = Path(name).suffix.lower().removeprefix(".")
    if suffix not in _READERS:
        known = ", ".join(f".{each}" for each in FILE_TYPES)
        limit = f"must end in {known}; --input-format (in Python input_format=) names the type"
        raise InvalidRequest("input", name, limit)
    return suffix


def has_file_type(name: str) -> bool:
    """Return whether the name ends as that of a file that can be read."""
    return Path(name).suffix.lower().removeprefix(".") in _READERS


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_mark(line: str) -> str:
    """Return a line without the byte order mark that begins it: in the first line of a file, or in
    a later one if files were joined."""
    return line.removeprefix("\ufeff")


def _read_txt(path: Path) -> Iterator[Row | None]:
    """Yield a prompt per line. Invalid UTF-8 becomes lone surrogates, which are rejected later."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in map(without_mark, file):
            yield line.rstrip("\r\n") if line.strip() else None


def _read_jsonl(path: Path) -> Iterator[Row | None]:
    """Yield a JSON object or string per line."""
    loads = json.loads
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in map(without_mark, file):
            if not line or line.isspace():
                yield None
                continue
            try:
                yield _row_of(loads(line))
            except (ValueError, RecursionError) as error:
                yield RejectedRow("line", shown_value(line.strip()), f"is not JSON: {error}")


def _read_csv(path: Path) -> Iterator[Row | None]:
    """Yield a mapping per row of a file with a header. An empty cell means no value.

    Raises:
        InvalidRequest: two columns have one name, a quote is never closed, a row of several lines
            is not CSV, or a cell has more than csv's limit of 131,072 characters.
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
    for name, times in Counter(header).items():
        if name and times > 1:
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
    return RejectedRow("row", shown_value(repr(row)), "must be a prompt, or an object of columns")


@dataclass(frozen=True)
class _Reader:
    """The functions that read files of one type."""

    read: Callable[[Path], Iterator[Row | None]]
    columns: Callable[[Path], Sequence[str] | None]
    """Returns the columns as in `Table`."""


_READERS: Final = {
    "txt": _Reader(_read_txt, lambda path: ()),
    "csv": _Reader(_read_csv, _csv_columns),
    "jsonl": _Reader(_read_jsonl, lambda path: None),
    "parquet": _Reader(_read_parquet, _parquet_columns),
}
FILE_TYPES: Final = tuple(_READERS)
"""The types of files that can be read, which are also the ends of their names."""
