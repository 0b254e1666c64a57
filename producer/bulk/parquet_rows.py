"""Read the rows of a Parquet file. Memory holds one row group."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

from imagefleet.producer.bulk.rows import Row
from imagefleet.producer.bulk.text_files import FileOptions, compression_of
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.process.extras import how_to_install

_BATCH_ROWS: Final = 1_000


def read_parquet(path: Path, _: FileOptions) -> Iterator[Row | None]:
    """Yield a mapping per row."""
    with _open_parquet(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS):
            yield from batch.to_pylist()


def parquet_columns(path: Path, _: FileOptions) -> list[str]:
    """Return the names of the columns."""
    with _open_parquet(path) as file:
        return list(file.schema_arrow.names)


@contextmanager
def _open_parquet(path: Path) -> "Iterator[ParquetFile]":
    try:
        from pyarrow import ArrowException, ArrowInvalid, parquet
    except ImportError:
        raise ConfigurationError(f"Parquet needs pyarrow; {how_to_install('dataset')}") from None
    try:
        with path.open("rb") as start:
            if compression_of(start.read(16)) is not None:
                limit = "is compressed as a whole; decompress it, Parquet is compressed inside"
                raise InvalidRequest("input", str(path), limit)
        with parquet.ParquetFile(path) as file:
            yield file
    except (ArrowInvalid, ArrowException, OSError) as error:
        sentence = str(error).splitlines()[0]
        limit = f"is not a complete Parquet file: {sentence}"
        raise InvalidRequest("input", str(path), limit) from None
