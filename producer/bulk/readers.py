"""Rows of any input, one at a time: text, CSV, JSON lines, Parquet, or whatever can be iterated.

Goes in: a path, or an iterable of prompts or mappings. Comes out: the names of its columns, if they
are known beforehand, and for each row a prompt, a mapping of columns, or what is wrong with it.
Knows no parameters and no plan. Memory holds one row, of Parquet one row group.
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

_BATCH_ROWS: Final = 1_000
_MAX_SHOWN_CHARS: Final = 60
"""Characters of a wrong value that are repeated."""


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that cannot be read."""

    field: str
    value: str | None
    """None if there is none."""
    reason: str


Row = str | Mapping[str, Any] | RejectedRow
Rows = str | Path | Iterable[str | Mapping[str, Any]]
"""A path, or the rows themselves; a Hugging Face dataset is the latter."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """What was found to plan."""

    source: Source
    columns: Sequence[str] | None
    """None if only the rows tell; none at all if every line is a prompt."""
    rows: Iterator[Row | None]
    """None is a blank line of a file, which is no row but counts as one."""


def open_rows(rows: Rows) -> Input:
    """Look at the input; its rows are read when they are asked for.

    Raises:
        InvalidRequest: no such file, or of an unknown kind; nothing that can be iterated.
        ConfigurationError: its reader is not installed.
    """
    if isinstance(rows, str | Path):
        return _open_file(Path(rows))
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise InvalidRequest("rows", rows, "must be a file's path, or several prompts or mappings")
    return Input(
        source=Source(name=type(rows).__name__),
        columns=getattr(rows, "column_names", None),  # of a Hugging Face dataset
        rows=(_row_of(row) for row in rows),
    )


def _open_file(path: Path) -> Input:
    kind = _FILE_TYPES.get(path.suffix.lower())
    if kind is None:
        raise InvalidRequest("input", str(path), f"must end in {', '.join(_FILE_TYPES)}")
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest("input", str(path), error.strerror or "cannot be read") from None
    source = Source(name=path.name, sha256=sha256)
    return Input(source=source, columns=kind.columns(path), rows=kind.read(path))


def _read_txt(path: Path) -> Iterator[Row | None]:
    """A prompt a line. Broken UTF-8 comes through as lone surrogates, which are refused later."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n") if line.strip() else None


def _read_jsonl(path: Path) -> Iterator[Row | None]:
    """A JSON object or string a line."""
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
    """With a header. An empty cell is a column left out, save the prompt's own.

    Raises InvalidRequest: two columns of one name, or a quote that swallows the rest."""
    with _open_csv(path) as reader:
        header = _header(reader, path)
        while True:
            begins = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if "end of data" in str(error):
                    open_quote = f"a quote in the row at line {begins} is never closed"
                    raise InvalidRequest("input", str(path), open_quote) from None
                yield RejectedRow("line", str(begins), f"is not CSV: {error}")
                continue
            if cells is None:
                yield None
            elif len(cells) > len(header):
                wide = f"has {len(cells)} cells, the header {len(header)}"
                yield RejectedRow("line", str(reader.line_num), wide)
            else:
                yield dict(zip(header, cells, strict=False))


class _CsvReader:
    """A `csv.reader` that gives None for a blank line: it alone takes a quoted blank cell for one,
    but that is a row."""

    def __init__(self, file: Iterable[str]) -> None:
        self._reader = csv.reader(self._remember_line(file), strict=True)
        self._line = ""

    @property
    def line_num(self) -> int:
        """Of the last line read, from 1."""
        return self._reader.line_num

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[str] | None:
        """Raises csv.Error; it can go on after that."""
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
    """The first line that is not blank."""
    try:
        header = next((cells for cells in reader if cells is not None), [])
    except csv.Error as error:
        raise InvalidRequest("input", str(path), f"its header is not CSV: {error}") from None
    for name in header:
        if name and header.count(name) > 1:
            raise InvalidRequest("column", name, "stands twice in the header")
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
        raise ConfigurationError("Parquet needs pyarrow: install imagefleet[dataset]") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (ArrowInvalid, ArrowException, OSError) as error:
        sentence = str(error).splitlines()[0]
        raise InvalidRequest("input", str(path), f"not a whole Parquet file: {sentence}") from None


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
    """A kind of file."""

    read: Callable[[Path], Iterator[Row | None]]
    columns: Callable[[Path], Sequence[str] | None]
    """As in `Input`."""


_FILE_TYPES: Final = {
    ".txt": _FileType(_read_txt, lambda path: ()),
    ".csv": _FileType(_read_csv, _csv_columns),
    ".jsonl": _FileType(_read_jsonl, lambda path: None),
    ".parquet": _FileType(_read_parquet, _parquet_columns),
}
