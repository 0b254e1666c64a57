"""Read the samples of a finished shard: the keys in its files, and images by key.

Input: a shard's files. Output: their samples. A damaged file raises `DamagedFile`.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any

from imagefleet.shared.bulk.file_layout import EXTENSION, archive_key, file_key, parquet_key
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage import ObjectStore


class DamagedFile(Exception):
    """A file is not what its name says. The message continues a sentence about the file."""


def sample_keys_in(data: bytes, file_format: BulkFormat, image_format: ImageFormat) -> list[str]:
    """Return the keys of the samples in an archive or Parquet file, with repetitions.

    Raises:
        DamagedFile: the file cannot be opened, or a sample is incomplete.
    """
    if file_format is BulkFormat.PARQUET:
        return [name.rpartition(".")[0] for name, _ in _parquet_images(data)]
    wanted = {EXTENSION[image_format], "json", "txt"}
    keys: list[str] = []
    suffixes: set[str] = set()
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for name in archive.getnames():
                key, _, suffix = name.rpartition(".")
                if not suffixes:
                    keys.append(key)
                if key != keys[-1] or suffix in suffixes:
                    raise DamagedFile(f"has an incomplete sample {keys[-1]}")
                suffixes.add(suffix)
                if suffixes == wanted:
                    suffixes = set()
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DamagedFile(f"cannot be opened: {error}") from None
    if suffixes:
        raise DamagedFile(f"has an incomplete sample {keys[-1]}")
    return keys


def read_metadata(data: bytes) -> list[dict[str, Any]]:
    """Return the metadata of each sample of a shard, with key, prompt and seed. Raise
    DamagedFile."""
    try:
        documents: list[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
        for each in documents:
            each["key"], each["prompt"], each["seed"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"does not hold the samples' metadata: {error}") from None
    return documents


def read_image(
    store: ObjectStore, shard: str, key: str, file_format: BulkFormat, image_format: ImageFormat
) -> bytes:
    """Return the file of one image of a finished shard. Raise KeyError or DamagedFile."""
    name = f"{key}.{EXTENSION[image_format]}"
    if file_format is BulkFormat.FILES:
        return store.get(file_key(shard, name))
    if file_format is BulkFormat.PARQUET:
        return dict(_parquet_images(store.get(parquet_key(shard))))[name]
    try:
        with tarfile.open(fileobj=io.BytesIO(store.get(archive_key(shard))), mode="r:") as archive:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()
    except tarfile.TarError as error:
        raise DamagedFile(f"cannot be opened: {error}") from None


def _parquet_images(data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        from pyarrow import ArrowException, BufferReader, parquet
    except ImportError:
        raise ConfigurationError(f"Parquet needs pyarrow; {how_to_install('dataset')}") from None
    try:
        table = parquet.read_table(BufferReader(data), columns=["image_name", "image"])
    except (ArrowException, OSError) as error:
        raise DamagedFile(f"cannot be opened: {str(error).splitlines()[0]}") from None
    for row in table.to_pylist():
        image = row["image"]
        yield row["image_name"], image["bytes"] if isinstance(image, dict) else image
