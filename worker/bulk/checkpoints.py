"""What is done of a shard so far, kept in its dataset: a worker that dies loses the rest only.

<first key>-<last key>.tar     finished samples
<first row>.failed.jsonl       rows that cannot be made, and why
alone.json                     the row that was tried by itself when its worker died

They lie below `parts/00000/` and the first digits of the SHA-256 of the shard's rows. Each object
stands for itself, so one that a late worker writes again changes nothing.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.file_layout import archive_key, checkpoints_folder, checkpoints_prefix
from imagefleet.shared.bulk.plan import ShardPlan, canonical_json
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.tar import read_tar, write_tar

_SUSPECT_FILE: Final = "alone.json"


class ShardCheckpoints:
    """Progress of one shard."""

    def __init__(self, store: ObjectStore, shard: ShardPlan) -> None:
        self._store = store
        self._shard = shard.name
        self._prefix = checkpoints_prefix(shard.name, shard.sha256)

    def save(self, samples: Sequence[Sample], failures: Sequence[RowFailure]) -> None:
        """Keep finished samples, and rows that failed."""
        if samples:
            keys = sorted(sample.key for sample in samples)
            archive = io.BytesIO()
            write_tar(samples, archive)
            name = f"{self._prefix}{keys[0]}-{keys[-1]}.tar"
            self._store.put_file(name, archive, "application/x-tar")
        if failures:
            lines = b"".join(canonical_json(each.model_dump()) + b"\n" for each in failures)
            name = f"{self._prefix}{min(each.row for each in failures):09d}.failed.jsonl"
            self._store.put(name, lines, "application/jsonl")

    def load(self, spool: Spool, is_planned: Callable[[Sample], bool]) -> list[RowFailure]:
        """Fill `spool`; the rows that failed. What cannot be read, is not what its document says,
        or is not `is_planned` is made again. A whole archive is a part too: its worker died beside
        it, or it is of another plan."""
        failures: list[RowFailure] = []
        for key in (archive_key(self._shard), *sorted(self._store.list(self._prefix))):
            with suppress(tarfile.TarError, KeyError, ValueError):
                if key.endswith(".tar"):
                    for sample in read_tar(io.BytesIO(self._store.get(key))):
                        sha256 = hashlib.sha256(sample.image).hexdigest()
                        if sha256 == sample.document["sha256"] and is_planned(sample):
                            spool.add(sample)
                elif key.endswith(".failed.jsonl"):
                    lines = self._store.get(key).splitlines()
                    failures += [RowFailure.model_validate_json(line) for line in lines]
        return failures

    def suspect_row(self) -> tuple[int, int] | None:
        """Which row was tried by itself, and how often."""
        try:
            found = json.loads(self._store.get(self._prefix + _SUSPECT_FILE))
            return int(found["row"]), int(found["times"])
        except (KeyError, ValueError):
            return None

    def record_suspect_row(self, row: int, times: int) -> None:
        """Note that `row` is tried by itself for the so many'th time."""
        data = json.dumps({"row": row, "times": times}).encode()
        self._store.put(self._prefix + _SUSPECT_FILE, data, "application/json")


def delete_checkpoints(store: ObjectStore, shard: str) -> None:
    """The shard is complete: nobody needs its parts, nor those of another plan."""
    store.delete_below(checkpoints_folder(shard))
