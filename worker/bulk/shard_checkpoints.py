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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.file_layout import (
    FAILED_ROWS,
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    checkpoints_folder,
    checkpoints_prefix,
)
from imagefleet.shared.bulk.plan import BulkFormat, ShardPlan, canonical_json
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.shard_formats import read_shard
from imagefleet.worker.bulk.tar import read_tar, write_tar

_SUSPECT_FILE: Final = "alone.json"
_DAMAGES: Final = (tarfile.TarError, KeyError, TypeError, ValueError, InvalidRequest)
"""Errors of a file that is missing, damaged, too large, or not what its name says."""


class ShardCheckpoints:
    """Reads and writes the checkpoints of one shard."""

    def __init__(
        self,
        store: ObjectStore,
        shard: ShardPlan,
        file_format: BulkFormat,
        check_may_save: Callable[[], object],
    ) -> None:
        """Store the arguments. `check_may_save` raises an error if the store is used for another
        plan now, which may have the same rows."""
        self._check_may_save = check_may_save
        self._store = store
        self._shard = shard.name
        self._format = file_format
        self._prefix = checkpoints_prefix(shard.name, shard.sha256)

    def save(self, samples: Sequence[Sample], failures: Sequence[RowFailure]) -> None:
        """Store finished samples and failed rows. Raise the error of `check_may_save`."""
        self._check_may_save()
        if samples:
            keys = sorted(sample.key for sample in samples)
            archive = io.BytesIO()
            write_tar(samples, archive)
            name = f"{self._prefix}{keys[0]}-{keys[-1]}.tar"
            self._store.put_file(name, archive, "application/x-tar")
        if failures:
            lines = b"".join(canonical_json(each.model_dump()) + b"\n" for each in failures)
            name = f"{self._prefix}{min(each.row for each in failures):09d}{FAILED_ROWS}"
            self._store.put(name, lines, "application/jsonl")

    def load(self, spool: Spool, as_planned: Callable[[Sample], Sample | None]) -> list[RowFailure]:
        """Load the stored samples into `spool`, and return the failed rows.

        Skip samples that cannot be read, lie in a file that is too large for memory, whose SHA-256
        differs from their document's, or for which `as_planned` returns None. They are generated
        again. The others are loaded as it returns them.
        The shard's own files count as a checkpoint too: its worker died before the commit marker,
        the shard was sent again for its failed rows, or they belong to another plan.
        """
        failures: list[RowFailure] = []
        with suppress(*_DAMAGES):
            _add(read_shard(self._shard, self._format, self._store), spool, as_planned)
        for key in sorted(self._store.list(self._prefix)):
            with suppress(*_DAMAGES):
                if key.endswith(".tar"):
                    archive = io.BytesIO(self._store.get(key, MAX_BINARY_BYTES))
                    _add(read_tar(archive), spool, as_planned)
                elif key.endswith(FAILED_ROWS):
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
        """Record that `row` is about to be generated alone; `times` counts this try too. Raise the
        error of `check_may_save`."""
        self._check_may_save()
        data = json.dumps({"row": row, "times": times}).encode()
        self._store.put(self._prefix + _SUSPECT_FILE, data, "application/json")


def _add(
    samples: Iterable[Sample], spool: Spool, as_planned: Callable[[Sample], Sample | None]
) -> None:
    """Add the samples that are intact and planned."""
    for sample in samples:
        sha256 = hashlib.sha256(sample.image).hexdigest()
        planned = as_planned(sample) if sha256 == sample.document["sha256"] else None
        if planned is not None:
            spool.add(planned)


def delete_checkpoints(store: ObjectStore, shard: str) -> None:
    """Delete all checkpoints of a finished shard, also those made for another plan."""
    store.delete_below(checkpoints_folder(shard))
