"""Write and read samples as tar archives in the order of webdataset: image, `json`, `txt`.

Equal samples give equal bytes, on every host and at any time.
https://github.com/webdataset/webdataset, "The WebDataset Format"
"""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

from imagefleet.shared.bulk.plan import canonical_json
from imagefleet.worker.bulk.samples import Sample

_MODE: Final = 0o644


def write_tar(samples: Iterable[Sample], file: IO[bytes]) -> None:
    """Write an archive of `samples` to `file`, at its position."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples:
            for name, data in sample_files(sample):
                archive.addfile(_tar_info(name, len(data)), io.BytesIO(data))


def read_tar(file: IO[bytes]) -> Iterator[Sample]:
    """Yield the samples of an archive that `write_tar` wrote, in its order.

    Raises:
        tarfile.TarError, KeyError, ValueError: `file` is not such an archive, or it is damaged.
    """
    parts: dict[str, bytes] = {}
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            key, _, suffix = member.name.rpartition(".")
            content = None if member.issparse() else archive.extractfile(member)
            if content is None:  # a sparse file could have any size in memory
                raise ValueError(f"{member.name} is not a plain file")
            parts[suffix] = content.read()
            if suffix == "txt":  # the last file of each sample
                yield _sample(key, parts)
                parts = {}
    if parts:
        raise ValueError("the archive ends inside a sample")


def sample_files(sample: Sample) -> list[tuple[str, bytes]]:
    """Return name and content of the files of a sample."""
    return [
        (f"{sample.key}.{sample.extension}", sample.image),
        (f"{sample.key}.json", canonical_json(sample.document)),
        (f"{sample.key}.txt", sample.text),
    ]


def _tar_info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, _MODE, 0
    return info


def _sample(key: str, parts: Mapping[str, bytes]) -> Sample:
    document: dict[str, Any] = json.loads(parts["json"])
    [extension] = parts.keys() - {"json", "txt"}
    return Sample(key=key, image=parts[extension], extension=extension, document=document)
