"""Store a finished shard in one of the dataset formats, and read its samples again.

webdataset   00000.tar                       image, json and txt of each sample
files        00000/<key>.png, .json, .txt    and 00000/metadata.jsonl, as `imagefolder` reads it
parquet      00000.parquet                   images as `datasets` reads them, and columns

Every format adds `00000.jsonl`, with one line for each sample's document. Samples are in the order
of the rows, and equal samples give equal bytes. Only this module of the worker uses pyarrow.
"""

import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from imagefleet.shared.bulk.file_layout import (
    EXTENSION,
    FOLDER_METADATA,
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    archive_key,
    file_key,
    metadata_key,
    parquet_key,
)
from imagefleet.shared.bulk.plan import BulkFormat, canonical_json
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage import ObjectStore, StoredObject
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.tar import read_tar, sample_files, write_tar

if TYPE_CHECKING:
    import pyarrow

_CONTENT_TYPES: Final = {
    "png": "image/png",
    "webp": "image/webp",
    "jpg": "image/jpeg",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_COPIED_COLUMNS: Final = (
    *("prompt", "seed", "width", "height", "negative_prompt"),
    *("row", "sha256", "pixel_sha256", "model", "model_digest"),
)
_SCHEMA_METADATA: Final = {"huggingface": '{"info":{"features":{"image":{"_type":"Image"}}}}'}
"""Schema metadata without which `datasets` returns bytes and not an image."""
_ROW_GROUP_SIZE: Final = 100
"""Rows per row group of a Parquet file: this many images are in memory at once."""
_MIN_ROW_BYTES: Final = 64
"""A row of a Parquet file takes more, with the digests of its image. A file of a stranger may have
a billion empty rows in few bytes."""


def put_shard(
    spool: Spool, name: str, file_format: BulkFormat, store: ObjectStore
) -> list[StoredObject]:
    """Store the shard `name` (`00000`) and return its files.

    Raises:
        StorageDenied, StorageUnavailable: the store does not accept a file.
        ConfigurationError: this worker cannot write `file_format`.
    """
    put_images = FORMATS[file_format]
    return [*put_images(spool, name, store), _put_metadata(spool, name, store)]


def require_format(file_format: BulkFormat) -> None:
    """Raise ConfigurationError if this host cannot write `file_format`."""
    if file_format is BulkFormat.PARQUET:
        _require_pyarrow()


def read_shard(name: str, file_format: BulkFormat, store: ObjectStore) -> Iterator[Sample]:
    """Yield the samples in the files of the shard `name`, as far as they can be read.

    Raises:
        KeyError, TypeError, ValueError, tarfile.TarError: the file with all images is missing, or
            it is damaged.
        InvalidRequest: it is too large for memory.
        StorageDenied, StorageUnavailable: the store does not return a file.
        ConfigurationError: this worker cannot read `file_format`.
    """
    return _READERS[file_format](name, store)


def _put_tar(spool: Spool, name: str, store: ObjectStore) -> Iterator[StoredObject]:
    with tempfile.TemporaryFile() as file:
        write_tar(spool, file)
        yield store.put_file(archive_key(name), file, "application/x-tar")


def _put_files(spool: Spool, name: str, store: ObjectStore) -> Iterator[StoredObject]:
    with tempfile.TemporaryFile() as file:
        for sample in spool:
            for file_name, data in sample_files(sample):
                content_type = _CONTENT_TYPES[file_name.rpartition(".")[2]]
                yield store.put(file_key(name, file_name), data, content_type)
            # `datasets` finds the image of a line by `file_name`.
            columns = {"file_name": _image_name(sample), **_columns(sample, name)}
            file.write(canonical_json(columns) + b"\n")
        key = file_key(name, FOLDER_METADATA)
        yield store.put_file(key, file, "application/jsonl")


def _put_parquet(spool: Spool, name: str, store: ObjectStore) -> Iterator[StoredObject]:
    _require_pyarrow()
    import pyarrow
    from pyarrow import parquet

    schema = _schema()
    samples = iter(spool)
    with tempfile.TemporaryFile() as file:
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while group := list(islice(samples, _ROW_GROUP_SIZE)):
                rows = [{"image": _image(sample), **_columns(sample, name)} for sample in group]
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
        yield store.put_file(parquet_key(name), file, "application/vnd.apache.parquet")


def _read_tar(name: str, store: ObjectStore) -> Iterator[Sample]:
    return read_tar(io.BytesIO(store.get(archive_key(name), MAX_BINARY_BYTES)))


def _read_files(name: str, store: ObjectStore) -> Iterator[Sample]:
    keys = set(store.list(file_key(name, "")))
    for key in sorted(keys):
        stem, _, extension = key.rpartition(".")
        if extension in EXTENSION.values() and f"{stem}.json" in keys:
            sample = None
            with suppress(KeyError, ValueError, InvalidRequest):
                document = json.loads(store.get(f"{stem}.json", MAX_TEXT_BYTES))
                sample = Sample(
                    key=stem.rpartition("/")[2],
                    image=store.get(key, MAX_BINARY_BYTES),
                    extension=extension,
                    document=document,
                )
            if sample is not None:
                yield sample


def _read_parquet(name: str, store: ObjectStore) -> Iterator[Sample]:
    data = store.get(parquet_key(name), MAX_BINARY_BYTES)
    _require_pyarrow()
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(pyarrow.BufferReader(data)) as table:
            if table.metadata.num_rows * _MIN_ROW_BYTES > len(data):
                raise ValueError(f"{parquet_key(name)} has impossibly many rows")
            for batch in table.iter_batches(1, columns=["image", "metadata"]):
                [row] = batch.to_pylist()
                key, _, extension = str(row["image"]["path"]).rpartition(".")
                yield Sample(
                    key=key,
                    image=row["image"]["bytes"],
                    extension=extension,
                    document=json.loads(row["metadata"]),
                )
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{parquet_key(name)} is damaged") from error


def _require_pyarrow() -> None:
    """Raise ConfigurationError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"the parquet format needs {error.name} on the workers; {how_to_install('dataset')}"
        ) from error


def _put_metadata(spool: Spool, name: str, store: ObjectStore) -> StoredObject:
    with tempfile.TemporaryFile() as file:
        for sample in spool:
            file.write(canonical_json(sample.document) + b"\n")
        return store.put_file(metadata_key(name), file, "application/jsonl")


def _schema() -> "pyarrow.Schema":
    """Return the schema of Parquet shards.

    `image` follows https://huggingface.co/docs/datasets/about_dataset_features. Other names and
    types follow https://huggingface.co/datasets/poloclub/diffusiondb where it has the column.
    """
    import pyarrow

    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    types = {"image": image, "seed": pyarrow.int64(), "cfg": pyarrow.float32()}
    types |= dict.fromkeys(("part_id", "step", "width", "height", "row"), pyarrow.int64())
    names = ["image", "image_name", "prompt", "part_id", "seed", "step", "cfg", "sampler"]
    names += ["width", "height", "negative_prompt", "row", "sha256", "pixel_sha256"]
    names += ["model", "model_digest"]
    names += ["metadata"]
    fields = [(name, types.get(name, pyarrow.string())) for name in names]
    return pyarrow.schema(fields, metadata=_SCHEMA_METADATA)


def _image(sample: Sample) -> Mapping[str, Any]:
    return {"bytes": sample.image, "path": _image_name(sample)}


def _image_name(sample: Sample) -> str:
    return f"{sample.key}.{sample.extension}"


def _columns(sample: Sample, shard: str) -> Mapping[str, Any]:
    """Return the columns of a sample beside its image. `metadata` is the whole document as JSON.

    A column that a worker of release 0.1.0 left out of a shard checkpoint is None.
    """
    document = sample.document
    return {
        "image_name": _image_name(sample),
        "part_id": int(shard),
        "step": document["num_inference_steps"],
        "cfg": document["guidance_scale"],
        "sampler": document["scheduler"],
        "metadata": canonical_json(document).decode(),
        **{name: document.get(name) for name in _COPIED_COLUMNS},
    }


FORMATS: Final[Mapping[BulkFormat, Callable[[Spool, str, ObjectStore], Iterator[StoredObject]]]] = {
    BulkFormat.WEBDATASET: _put_tar,
    BulkFormat.FILES: _put_files,
    BulkFormat.PARQUET: _put_parquet,
}
"""The function that stores the images of a shard, by format."""
_READERS: Final[Mapping[BulkFormat, Callable[[str, ObjectStore], Iterator[Sample]]]] = {
    BulkFormat.WEBDATASET: _read_tar,
    BulkFormat.FILES: _read_files,
    BulkFormat.PARQUET: _read_parquet,
}
"""The function that reads the samples of a shard, by format."""
