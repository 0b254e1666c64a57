"""Read the rows of Arrow files: those of Feather (version 2), and the streams of `datasets`.

Input: a file. Output: the names of its columns, and its rows. Memory holds one record batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

from imagefleet.producer.bulk.rows import Row
from imagefleet.producer.bulk.text_files import FileOptions, compression_of
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.process.extras import how_to_install

_MAGIC: Final = b"ARROW1"
_OLD_FEATHER: Final = b"FEA1"
_BATCH_ROWS: Final = 1_000


def read_arrow(path: Path, _: FileOptions) -> Iterator[Row | None]:
    """Yield a mapping per row."""
    with errors_of_arrow(path, "Arrow"):
        for batch in _batches(path):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from batch.slice(start, _BATCH_ROWS).to_pylist()


def arrow_columns(path: Path, _: FileOptions) -> list[str]:
    """Return the names of the columns."""
    with errors_of_arrow(path, "Arrow"):
        return list(_schema(path).names)


@contextmanager
def errors_of_arrow(path: Path, kind: str) -> Iterator[None]:
    """Raise InvalidRequest for a file that pyarrow cannot read inside the block.

    Args:
        kind: what the file should be.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowException, ArrowInvalid
    except ImportError:
        raise ConfigurationError(f"{kind} needs pyarrow; {how_to_install('dataset')}") from None
    try:
        with path.open("rb") as file:
            head = file.read(16)
        if compression_of(head) is not None:
            limit = f"is compressed as a whole; decompress it, {kind} is compressed inside"
            raise InvalidRequest("input", str(path), limit)
        if head.startswith(_OLD_FEATHER):
            limit = "is a Feather file of version 1; write it as version 2, or as Parquet"
            raise InvalidRequest("input", str(path), limit)
        yield
    except (ArrowInvalid, ArrowException, OSError) as error:
        sentence = (str(error).splitlines() or [""])[0]
        limit = f"is not a complete {kind} file: {sentence}"
        raise InvalidRequest("input", str(path), limit) from None


def _batches(path: Path) -> "Iterator[RecordBatch]":
    with _opened(path) as reader:
        if hasattr(reader, "num_record_batches"):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader


def _schema(path: Path) -> "Schema":
    with _opened(path) as reader:
        return reader.schema


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of Arrow's format for files, or else of that for streams."""
    from pyarrow import OSFile, ipc

    with path.open("rb") as start:
        is_file = start.read(len(_MAGIC)) == _MAGIC
    with OSFile(str(path)) as file, (ipc.open_file if is_file else ipc.open_stream)(file) as r:
        yield r
