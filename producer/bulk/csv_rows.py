"""Read the rows of a CSV file with a header, or of one with another character between its cells.

Input: a file. Output: the names of its columns, and its rows. Memory holds one row.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from imagefleet.producer.bulk.rows import RejectedRow, Row
from imagefleet.producer.bulk.text_files import FileOptions, open_lines
from imagefleet.shared.errors import InvalidRequest

_OTHER_DELIMITERS: Final = {";": "';'", "\t": "$'\\t'", "|": "'|'"}
"""These stand between the columns of some CSV files; a shell writes them as the values do."""


def read_csv(path: Path, options: FileOptions) -> Iterator[Row | None]:
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


def csv_columns(path: Path, options: FileOptions) -> list[str]:
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
