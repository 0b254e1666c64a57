"""Read the rows of a Parquet file. Memory holds one row group."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from imagefleet.producer.bulk.arrow_files import errors_of_arrow
from imagefleet.producer.bulk.rows import Row
from imagefleet.producer.bulk.text_files import FileOptions

_BATCH_ROWS: Final = 1_000


def read_parquet(path: Path, _: FileOptions) -> Iterator[Row | None]:
    """Yield a mapping per row."""
    with errors_of_arrow(path, "Parquet"):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()


def parquet_columns(path: Path, _: FileOptions) -> list[str]:
    """Return the names of the columns."""
    with errors_of_arrow(path, "Parquet"):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            return list(file.schema_arrow.names)
