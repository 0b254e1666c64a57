"""Store checkpoints of an unfinished shard in its dataset, so that another worker can resume.

<first key>-<last key>.tar     finished samples
<first row>.failed.jsonl       rows that cannot be generated, with the errors
alone.json                     the suspect row that a worker generates alone

They lie below `parts/00000/` and the first digits of the SHA-256 of the shard's rows. The objects
are independent, so it does no harm if a late worker writes one again.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.file_layout import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    archive_key,
    checkpoints_folder,
    checkpoints_prefix,
)
from imagefleet.shared.bulk.plan import ShardPlan, canonical_json
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.tar import read_tar, write_tar

_SUSPECT_FILE: Final = "alone.json"


class ShardCheckpoints:
    """Reads and writes the checkpoints of one shard."""

    def __init__(self, store: ObjectStore, shard: ShardPlan) -> None:
        self._store = store
        self._shard = shard.name
        self._prefix = checkpoints_prefix(shard.name, shard.sha256)

    def save(self, samples: Sequence[Sample], failures: Sequence[RowFailure]) -> None:
        """Store finished samples and failed rows."""
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
        """Load the stored samples into `spool`, and return the failed rows.

        Skip samples that cannot be read, lie in a file that is too large for memory, whose SHA-256
        differs from their document's, or for which `is_planned` is false. They are generated again.
        The shard's own archive counts as a checkpoint too: its worker died before the commit
        marker, or it belongs to another plan.
        """
        failures: list[RowFailure] = []
        for key in (archive_key(self._shard), *sorted(self._store.list(self._prefix))):
            with suppress(tarfile.TarError, KeyError, ValueError, InvalidRequest):
                if key.endswith(".tar"):
                    for sample in read_tar(io.BytesIO(self._store.get(key, MAX_BINARY_BYTES))):
                        sha256 = hashlib.sha256(sample.image).hexdigest()
                        if sha256 == sample.document["sha256"] and is_planned(sample):
                            spool.add(sample)
                elif key.endswith(".failed.jsonl"):
                    lines = self._store.get(key, MAX_TEXT_BYTES).splitlines()
                    failures += [RowFailure.model_validate_json(line) for line in lines]
        return failures

    def suspect_row(self) -> tuple[int, int] | None:
        """Return the row that was last generated alone, and how often, or None."""
        try:
            suspect = json.loads(self._store.get(self._prefix + _SUSPECT_FILE, MAX_TEXT_BYTES))
            return int(suspect["row"]), int(suspect["times"])
        except (KeyError, ValueError, InvalidRequest):
            return None

    def record_suspect_row(self, row: int, times: int) -> None:
        """Record that `row` is about to be generated alone; `times` counts this try too."""
        data = json.dumps({"row": row, "times": times}).encode()
        self._store.put(self._prefix + _SUSPECT_FILE, data, "application/json")


def delete_checkpoints(store: ObjectStore, shard: str) -> None:
    """Delete all checkpoints of a finished shard, also those made for another plan."""
    store.delete_below(checkpoints_folder(shard))
