"""Define the samples of a dataset, and collect those of a shard in a file on disk.

The bytes of a sample depend on its row and the model alone. They name no worker, time or run, so a
second attempt gives the same bytes. This module depends on no dataset format, store or queue.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from imagefleet.shared.bulk.plan import canonical_json


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One encoded image with its metadata document."""

    key: str
    image: bytes = field(repr=False)
    extension: str
    document: Mapping[str, Any]
    """It is the metadata of the image, with its key, row, SHA-256 and extra columns."""

    @property
    def text(self) -> bytes:
        return str(self.document["prompt"]).encode()


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of a sample in the spool file. Offset and sizes are bytes."""

    offset: int
    image_size: int
    document_size: int
    extension: str


class Spool:
    """The samples of one shard in a temporary file; memory holds only their positions.

    Use it as a context manager. A second sample with the same key is ignored.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="imagefleet-shard-")  # noqa: SIM115
        self._positions: dict[str, _Position] = {}
        self._end = 0

    def add(self, sample: Sample) -> None:
        if sample.key in self._positions:
            return
        document = canonical_json(sample.document)
        self._file.seek(self._end)
        self._file.write(sample.image)
        self._file.write(document)
        self._positions[sample.key] = _Position(
            self._end, len(sample.image), len(document), sample.extension
        )
        self._end += len(sample.image) + len(document)

    @property
    def size(self) -> int:
        """Return the bytes of all samples, also after the file was closed."""
        return self._end

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples in the order of their keys, which is the order of the rows."""
        for key in sorted(self._positions):
            yield self[key]

    def __getitem__(self, key: str) -> Sample:
        position = self._positions[key]
        self._file.seek(position.offset)
        return Sample(
            key=key,
            image=self._file.read(position.image_size),
            document=json.loads(self._file.read(position.document_size)),
            extension=position.extension,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
