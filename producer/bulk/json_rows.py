"""Read rows from JSON: one of each line, or the elements of one array.

Input: a file. Output: rows. Memory holds one row and some characters.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from imagefleet.producer.bulk.comfyui import looks_like_workflow, read_comfyui
from imagefleet.producer.bulk.rows import RejectedRow, Row, row_of, shown_value
from imagefleet.producer.bulk.text_files import (
    MAX_LINE_CHARACTERS,
    FileOptions,
    open_lines,
    open_text,
    without_mark,
)
from imagefleet.shared.errors import InvalidRequest

_BLANK: Final = " \t\r\n"
_ADVICE: Final = (
    "must be an array of rows, as df.to_json(orient='records') of pandas writes it, or a row a line"
)
_CHUNK_CHARACTERS: Final = 1 << 16


def json_lines(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the JSON value of each line, and None for a blank one."""
    decoder = _Decoder()
    with open_lines(path, options) as lines:
        for line in map(without_mark, lines):
            if not line or line.isspace():
                yield None
                continue
            try:
                yield decoder.row(line)
            except (ValueError, RecursionError) as error:
                yield RejectedRow("line", shown_value(line.strip()), f"is not JSON: {error}")


def json_rows(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the elements of an array, or the value of each line, as many programs name both.

    Raises:
        InvalidRequest: the file is neither.
    """
    with open_text(path, options) as file:
        buffer = _Buffer(file)
        first, head = buffer.next(), buffer.text
    if first == "[":
        yield from _elements(path, options)
        return
    if first == "{" and looks_like_workflow(head):
        yield from read_comfyui(path, options)
        return
    is_first = True
    for row in json_lines(path, options):
        if is_first and isinstance(row, RejectedRow) and row.field == "line":
            raise InvalidRequest("input", str(path), _ADVICE)
        is_first = is_first and row is None
        yield row


def _elements(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the elements of the array that a file is.

    Raises:
        InvalidRequest: the file holds something else, or ends too early.
    """
    with open_text(path, options) as file:
        buffer, number, decoder = _Buffer(file), 0, _Decoder()
        buffer.next()
        buffer.at += 1  # behind the bracket
        mark = buffer.next()
        while mark != "]" or number:
            yield _element(buffer, decoder, number, str(path))
            number += 1
            if (mark := buffer.next()) != ",":
                break
            buffer.at += 1
        if mark != "]":
            limit = f"is damaged: neither , nor ] stands behind row {number - 1} of its array"
            raise InvalidRequest("input", str(path), limit)
        buffer.at += 1
        if buffer.next():
            raise InvalidRequest("input", str(path), "goes on behind its array of rows")


class _Buffer:
    """The text of a file from a position on, as far as it has been read."""

    def __init__(self, file: TextIO) -> None:
        self._read = partial(file.read, _CHUNK_CHARACTERS)
        self.text = ""
        self.at = 0

    def read_more(self) -> bool:
        """Read as much again as there is, and forget what is before the position. Return False at
        the end."""
        parts = [self.text[self.at :]]
        wanted = max(1, len(parts[0]))
        while wanted > 0 and (part := self._read()):
            parts.append(part)
            wanted -= len(part)
        self.text, self.at = "".join(parts), 0
        return len(parts) > 1

    def next(self) -> str:
        """Return the next character that is not blank, at the position now; at the end nothing."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _BLANK:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.read_more():
                return ""


class _Decoder:
    """Reads rows from JSON. It rejects a row in which a name stands twice: only one of both values
    could be used, and programs differ in which."""

    def __init__(self) -> None:
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object)
        self._twice: list[str] = []
        """Names that stand twice in an object of the row that is read."""

    def row(self, text: str) -> Row:
        """Return the row that a text is. Raise ValueError or RecursionError if it is not JSON."""
        self._twice.clear()
        return self._row_of(self._decoder.decode(text))

    def row_at(self, text: str, at: int) -> tuple[Row, int]:
        """Return the row that begins at a position, and where it ends. Raise as `row` does."""
        self._twice.clear()
        value, end = self._decoder.raw_decode(text, at)
        return self._row_of(value), end

    def _row_of(self, value: object) -> Row:
        if not self._twice:
            return row_of(value)
        reason = "stands twice in an object of this row"
        return RejectedRow("name", shown_value(self._twice[0]), reason)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            self._twice.append(max(names, key=names.count))
        return made


def _element(buffer: _Buffer, decoder: _Decoder, number: int, name: str) -> Row:
    """Return the element at the position, and go behind it."""
    buffer.next()
    while True:
        try:
            row, end = decoder.row_at(buffer.text, buffer.at)
        except (ValueError, RecursionError) as error:
            limit = f"row {number} of its array is not JSON: {error}"
            if len(buffer.text) - buffer.at > MAX_LINE_CHARACTERS or not buffer.read_more():
                raise InvalidRequest("input", name, limit) from None
            continue
        length = end - buffer.at
        if end < len(buffer.text) or not buffer.read_more():  # else a number may go on
            buffer.at += length
            return row
