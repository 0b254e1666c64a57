"""Rows of any input, one at a time: text, CSV, JSON lines, Parquet, or whatever can be iterated.

Goes in: a path, or an iterable of prompts or mappings. Comes out: for each row a prompt, a mapping
of columns, or what is wrong with it. Knows no parameters and no plan. Memory holds one row, of
Parquet one row group.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shared.bulk.plan import Source
from shared.errors import ConfigurationError, InvalidRequest

_ROWS_A_BATCH: Final = 1_000
_TEXT: Final = ".txt"
_SHOWN: Final = 60
"""Characters of a wrong value that are repeated."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A row that cannot be read."""

    field: str
    value: str | None
    """None if there is none."""
    reason: str


Row = str | Mapping[str, Any] | Wrong
Rows = str | Path | Iterable[str | Mapping[str, Any]]
"""A path, or the rows themselves; a Hugging Face dataset is the latter."""


def open_rows(rows: Rows) -> tuple[Source, Iterator[Row | None]]:
    """Where the rows come from, and the rows; None for a blank line of text, which is no row but
    counts as one.

    Raises:
        InvalidRequest: no such file, or of an unknown kind; nothing that can be iterated.
        ConfigurationError: its reader is not installed.
    """
    if isinstance(rows, str | Path):
        return _open_file(Path(rows))
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise InvalidRequest("rows", rows, "must be a file's path, or several prompts or mappings")
    return Source(name=type(rows).__name__), (_row_of(row) for row in rows)


def has_columns(rows: Rows) -> bool:
    """Not if every line is a prompt."""
    return not isinstance(rows, str | Path) or Path(rows).suffix.lower() != _TEXT


def _open_file(path: Path) -> tuple[Source, Iterator[Row | None]]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidRequest("input", str(path), f"must end in {', '.join(_READERS)}")
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest("input", str(path), error.strerror or "cannot be read") from None
    return Source(name=path.name, sha256=sha256), reader(path)


def _read_txt(path: Path) -> Iterator[Row | None]:
    """A prompt a line. Broken UTF-8 comes through as lone surrogates, which are refused later."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n") if line.strip() else None


def _read_jsonl(path: Path) -> Iterator[Row]:
    """A JSON object or string a line."""
    loads = json.loads
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line in file:
            try:
                yield _row_of(loads(line))
            except (ValueError, RecursionError) as error:
                yield Wrong("line", line[:_SHOWN].strip(), f"is not JSON: {error}")


def _read_csv(path: Path) -> Iterator[Row]:
    """With a header. An empty cell is a column left out, save the prompt's own.

    Raises InvalidRequest: two columns of one name, or a quote that swallows the rest."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, strict=True)
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
                yield Wrong("line", str(begins), f"is not CSV: {error}")
                continue
            if len(cells) > len(header):
                wide = f"has {len(cells)} cells, the header {len(header)}"
                yield Wrong("line", str(reader.line_num), wide)
            else:
                yield dict(zip(header, cells, strict=False))


def _header(reader: Iterator[list[str]], path: Path) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InvalidRequest("input", str(path), f"its header is not CSV: {error}") from None
    for name in header:
        if name and header.count(name) > 1:
            raise InvalidRequest("column", name, "stands twice in the header")
    return header


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, ArrowInvalid, parquet
    except ImportError:
        raise ConfigurationError("Parquet needs pyarrow: install imagefleet[dataset]") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_A_BATCH):
                yield from batch.to_pylist()
    except (ArrowInvalid, ArrowException, OSError) as error:
        sentence = str(error).splitlines()[0]
        raise InvalidRequest("input", str(path), f"not a whole Parquet file: {sentence}") from None


def _row_of(row: object) -> Row:
    if isinstance(row, str):
        return row
    if isinstance(row, Mapping):
        return row
    return Wrong("row", repr(row)[:_SHOWN], "must be a prompt, or an object of columns")


_READERS: Final = {
    _TEXT: _read_txt,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
