"""Open text files that others wrote: compressed or not, in the encoding that they name or have.

Input: a file. Output: its lines, one at a time. What is no text is refused by the name of what it
is. This module depends on neither tables nor rows.
"""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, TextIO, cast

from imagefleet.producer.bulk.notes import Notes
from imagefleet.shared.errors import ConfigurationError, ImagefleetError, InvalidRequest
from imagefleet.shared.process.extras import how_to_install

MAX_LINE_CHARACTERS: Final = 1 << 24
"""A line with more is refused: a small compressed file may hold one that fills the memory."""
COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst")
"""The names of compressed files end so."""
_BUFFER_BYTES: Final = 1 << 16
_BROKEN: Final = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""Readers of damaged compressed files raise these."""
_BZIP2_BLOCKS: Final = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""One of these follows BZh and a digit: the first block begins, or the file ends."""
_NAMED: Final = "; --input-format %s (in Python input_format=) reads it"
_FOREIGN: Final = (
    (b"PAR1", "is a Parquet file" + _NAMED % "parquet"),
    (b"PK\x03\x04", "is a ZIP archive or a workbook; unpack it, or save it as CSV"),
    (b"ARROW1", "is an Arrow file" + _NAMED % "arrow"),
    (b"\xff\xff\xff\xff", "is an Arrow stream" + _NAMED % "arrow"),
    (b"\xd0\xcf\x11\xe0", "is a workbook; save it as CSV"),
    (b"%PDF", "is a PDF file; only tables of prompts are read"),
    (b"\x89PNG", "is an image" + _NAMED % "png"),
    (b"\xff\xd8\xff", "is an image" + _NAMED % "jpg"),
)
"""Files that are no text begin so. The sentences say what to do."""
_NO_MARK: Final = (
    "is UTF-16 or UTF-32 without a byte order mark, or no text; name the encoding with --encoding "
    "(in Python encoding=), as in --encoding utf-16-le"
)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """What a caller says about the files of an input. None: the files show it."""

    file_type: str | None = None
    """It is one of `readers.FILE_TYPES`."""
    delimiter: str | None = None
    """It stands between two cells of a CSV file."""
    encoding: str | None = None
    any_line_end: bool = False
    """Whether a carriage return ends a line of every text file; see `open_text`."""
    notes: Notes = field(default_factory=Notes, compare=False)
    """What the readers have to say about the files."""

    def __post_init__(self) -> None:
        """Raise InvalidRequest if the delimiter or the encoding is none."""
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise InvalidRequest("delimiter", self.delimiter, "must be one character")
        if self.encoding is None:
            return
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding)
        except (LookupError, ValueError):
            limit = "is no encoding that Python knows"
            raise InvalidRequest("encoding", self.encoding, limit) from None


NOTHING_SAID: Final = FileOptions()


@contextmanager
def open_lines(
    path: Path, options: FileOptions, *, any_line_end: bool = False
) -> Iterator[Iterator[str]]:
    """Open a file as `open_text` does, and return its lines with their ends.

    Raises:
        InvalidRequest: a line is too long, beside what `open_text` raises.
    """
    with open_text(path, options, any_line_end=any_line_end) as file:
        yield _lines(file, str(path))


@contextmanager
def open_text(path: Path, options: FileOptions, *, any_line_end: bool = False) -> Iterator[TextIO]:
    """Open a file.

    Args:
        any_line_end: whether a carriage return ends a line beside line feeds, as CSV has it.
            Otherwise it ends lines of files that have no line feed in the beginning.

    Raises:
        InvalidRequest: it is no text, or damaged; also later, while it is read.
        ConfigurationError: the reader of its compression is not installed.
    """
    any_line_end = any_line_end or options.any_line_end
    with error_about_text(str(path)), closing(_decompressed(path)) as file:
        yield decoded(file, str(path), options, any_line_end=any_line_end)


@contextmanager
def error_about_text(name: str) -> Iterator[None]:
    """Raise InvalidRequest for an error of a decoder, or of what decompresses, inside the block."""
    try:
        yield
    except ImagefleetError:
        raise
    except _BROKEN as error:
        raise InvalidRequest("input", name, f"is damaged: {error}") from None
    except UnicodeDecodeError as error:
        limit = f"is not {error.encoding} throughout: {error.reason}"
        raise InvalidRequest("input", name, limit) from None


@contextmanager
def error_named(path: Path, name: str, advice: str = "") -> Iterator[None]:
    """Name a copied file in errors of the block as the file that it was, and add advice to them."""
    try:
        yield
    except InvalidRequest as error:
        if error.value != str(path):
            raise
        raise InvalidRequest(error.field, name, error.limit + advice) from None


def without_mark(line: str) -> str:
    """Return a line without the byte order mark that begins it: in the first line of a file, or in
    a later one if files were joined."""
    return line.removeprefix("\ufeff")


def decoded(
    file: io.BufferedReader,
    name: str,
    options: FileOptions = NOTHING_SAID,
    *,
    any_line_end: bool = False,
) -> io.TextIOWrapper:
    """Return the text of a file that is not compressed. Bytes that are not in its encoding become
    lone surrogates, which reject their row later.

    Args:
        any_line_end: see `open_text`.

    Raises:
        InvalidRequest: it is no text.
    """
    head = file.peek(_BUFFER_BYTES)
    if options.encoding is None:
        if compression_of(head) is not None:
            raise InvalidRequest("input", name, "is compressed; decompress it")
        for mark, limit in _FOREIGN:
            if head.startswith(mark):
                raise InvalidRequest("input", name, limit)
    encoding = options.encoding or _encoding_of(head, name)
    plain = codecs.lookup(encoding).name
    if plain == "utf-8":
        encoding = "utf-8-sig"
    errors = "surrogatepass" if plain.startswith(("utf-16", "utf-32")) else "surrogateescape"
    start = head.decode(encoding, "ignore")
    newline = "\r" if "\r" in start and "\n" not in start else "\n"
    return io.TextIOWrapper(file, encoding, errors, newline="" if any_line_end else newline)


def _encoding_of(head: bytes, name: str) -> str:
    """Return the encoding that the byte order mark names, or UTF-8."""
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if head.startswith(mark):
            return encoding
    if b"\0" in head[:2]:
        raise InvalidRequest("input", name, _NO_MARK)
    return "utf-8"


def _lines(file: TextIO, name: str) -> Iterator[str]:
    number = 1
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        if len(line) > MAX_LINE_CHARACTERS:
            limit = f"line {number} has more than {MAX_LINE_CHARACTERS:,} characters"
            raise InvalidRequest("input", name, limit)
        yield line
        number += 1


def _open_bzip2(path: Path) -> Any:
    return bz2.open(path)


def _open_zstd(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigurationError(f"zstd needs pyarrow; {how_to_install('dataset')}") from None
    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd")


_MAGIC: Final[dict[bytes, Callable[[Path], Any]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": _open_bzip2,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}
"""Compressed files that begin so are opened by these."""


def compression_of(head: bytes) -> Callable[[Path], IO[bytes]] | None:
    """Return what opens a file that begins so; None if it is not compressed."""
    for mark, opener in _MAGIC.items():
        if head.startswith(mark) and (mark != b"BZh" or head[4:10] in _BZIP2_BLOCKS):
            return opener
    return None


def _decompressed(path: Path) -> io.BufferedReader:
    with path.open("rb") as file:
        opener = compression_of(file.read(16))
    raw = path.open("rb", buffering=0) if opener is None else opener(path)
    return io.BufferedReader(cast(io.RawIOBase, raw), _BUFFER_BYTES)
