"""A finished picture of a dataset and what is told of it, and where a shard keeps them meanwhile.

Knows no format, no store and no queue. The bytes of a sample depend on its row and the model alone:
no worker, no time and no run is named in them, so a second attempt makes the same.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from imagefleet.shared.bulk.plan import canonical_json


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One picture as a file, with its description."""

    key: str
    image: bytes = field(repr=False)
    extension: str
    document: Mapping[str, Any]
    """As `sample_document` made it."""

    @property
    def text(self) -> bytes:
        return str(self.document["prompt"]).encode()


@dataclass(frozen=True, slots=True)
class _Place:
    at: int
    image: int
    document: int
    extension: str


class Spool:
    """The samples of one shard, on disk: memory holds their places only. `with Spool() as spool`.

    A second sample of the same key changes nothing.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="imagefleet-shard-")  # noqa: SIM115
        self._places: dict[str, _Place] = {}
        self._end = 0

    def add(self, sample: Sample) -> None:
        if sample.key in self._places:
            return
        document = canonical_json(sample.document)
        self._file.seek(self._end)
        self._file.write(sample.image)
        self._file.write(document)
        self._places[sample.key] = _Place(
            self._end, len(sample.image), len(document), sample.extension
        )
        self._end += len(sample.image) + len(document)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sample]:
        """In the order of the keys, which is that of the rows."""
        for key in sorted(self._places):
            yield self[key]

    def __getitem__(self, key: str) -> Sample:
        place = self._places[key]
        self._file.seek(place.at)
        return Sample(
            key=key,
            image=self._file.read(place.image),
            document=json.loads(self._file.read(place.document)),
            extension=place.extension,
        )

    def size_of(self, key: str) -> int:
        """Bytes of its picture and document."""
        return self._places[key].image + self._places[key].document

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
