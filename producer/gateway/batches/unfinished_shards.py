"""Bring the images of unfinished shards to where those of finished shards lie.

A worker that stops in a shard leaves checkpoints with the samples that it has made. An order that
ends before its shard is finished has these images, too. Input: a run in the format `files` that
nobody works on any more. Output: its images as files, and their metadata. No commit marker is
written, so the shard stays unfinished, and another worker may still go on with it.
"""

import hashlib
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.file_layout import CHECKPOINTS, checkpoints_prefix, file_key
from imagefleet.shared.bulk.plan import BulkFormat, ShardPlan

_CONTENT_TYPES: Final = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
_IMAGE: Final = re.compile(r"[0-9]{9}-[0-9]{2}\.(?:png|jpg|webp)")
"""An image has such a name in the folder of its shard."""
_MAX_IMAGE_BYTES: Final = 256 << 20
DAMAGES: Final = (tarfile.TarError, KeyError, TypeError, ValueError)
"""Reading a checkpoint raises these if it is missing, damaged, or not what its name says."""


class UnfinishedShards:
    """The checkpoints that a run had when it ended."""

    def __init__(self, run: BulkRun) -> None:
        self._run = run
        self._checkpoints = sorted(each for each in run.store.list(CHECKPOINTS))

    def store_images(self, shard: ShardPlan) -> list[dict[str, Any]]:
        """Store the images of the checkpoints of a shard, and return their metadata by key.

        A damaged checkpoint, and an image that is not what its metadata say, are left out. It does
        no harm to call it again. Raises StorageDenied, StorageUnavailable.
        """
        store, prefix = self._run.store, checkpoints_prefix(shard.name, shard.sha256)
        found: dict[str, dict[str, Any]] = {}
        for key in self._checkpoints:
            if key.startswith(prefix) and key.endswith(".tar"):
                with tempfile.TemporaryFile() as file, suppress(*DAMAGES):
                    store.get_file(key, file)
                    file.seek(0)
                    for name, image, document in samples_in(file):
                        content_type = _CONTENT_TYPES[name.rpartition(".")[2]]
                        store.put(file_key(shard.name, name), image, content_type)
                        found[document["key"]] = document
        return [found[key] for key in sorted(found)]


def read_unfinished(run: BulkRun, shard: ShardPlan, key: str) -> bytes:
    """Return an image that `store_images` has stored. Raises KeyError."""
    folder = file_key(shard.name, "")
    is_image = key.startswith(folder) and _IMAGE.fullmatch(key.removeprefix(folder))
    if run.plan.format is not BulkFormat.FILES or not is_image:
        raise KeyError(key)
    return run.store.get(key, _MAX_IMAGE_BYTES)


def samples_in(archive: IO[bytes]) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield file name, image and metadata of the intact samples of a checkpoint or a shard.

    The files of a sample follow each other: image, `json` and `txt`.
    """
    name, image = "", b""
    with tarfile.open(fileobj=archive, mode="r:") as members:
        for member in members:
            if member.name.endswith(".txt"):
                continue
            file = None if member.issparse() else members.extractfile(member)
            if file is None:  # a sparse file could have any size in memory
                raise ValueError(f"{member.name} is not a plain file")
            content = file.read()
            if not member.name.endswith(".json"):
                name, image = member.name, content
                continue
            document = json.loads(content)
            digest = hashlib.sha256(image).hexdigest()
            is_whole = _IMAGE.fullmatch(name) and name.startswith(f"{document['key']}.")
            if is_whole and digest == document["sha256"]:
                yield name, image, document
