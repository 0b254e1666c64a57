"""Build a plan from rows: number them, check them, leave out repeated ones, collect them in shards.

Input: tables of rows, one after another. Output: a plan. This module neither reads tables nor
writes row files.
"""

import hashlib
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self

from imagefleet.producer.bulk.alternatives import NO_ALTERNATIVES, Alternatives
from imagefleet.producer.bulk.plan_writer import OpenShard
from imagefleet.producer.bulk.readers import Table
from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.rejected_limit import RejectedLimit
from imagefleet.producer.bulk.row_validation import PlannedRow, RowDefaults, RowPlanner, Size
from imagefleet.producer.bulk.rows import RejectedRow, Row
from imagefleet.producer.bulk.shard_sizes import ShardSizing
from imagefleet.shared.bulk.file_layout import MAX_ROWS, shard_name
from imagefleet.shared.bulk.plan import BulkFormat, Plan, ShardPlan, Source
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.arguments import check_whole_number
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_lookups import ROW_COUNTS

MAX_SHARD_SIZE: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The parameters of a whole dataset, as the user gave them."""

    defaults: RowDefaults
    format: BulkFormat
    image_format: ImageFormat
    dedupe: bool = False
    alternatives: Alternatives = NO_ALTERNATIVES
    limit: int | None = None
    """It is the number of first rows of the input to use. None: all."""
    max_rejected: RejectedLimit | None = None
    """More rejected rows refuse the run. None: any number of them may be left out."""


class ShardWriter(Protocol):
    """What takes the rows of full shards."""

    def put_rows(self, name: str, size: Size, shard: OpenShard) -> "Future[ShardPlan]":
        """Take the rows of a shard, and return what the plan says about it."""

    def put_rejected(self, rejected: RejectedRowsFile) -> None:
        """Take the rejected rows."""


class PlanBuilder:
    """Collects rows into shards, and builds the plan from them. Use it as a context manager.

    Rows are numbered through all tables, with the blank lines between them.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        planner: RowPlanner,
        writer: ShardWriter,
        sizing: ShardSizing | None = None,
        *,
        seams: Sequence[int] = (),
    ) -> None:
        """
        Args:
            seams: row numbers, in order. No shard holds rows before and behind one.
            sizing: chooses the size of the shards if `spec` has none.

        Raises:
            InvalidRequest: the shard size of `spec` is out of range.
        """
        self._shard_size = spec.defaults.shard_size
        if self._shard_size is not None:
            check_whole_number("shard_size", self._shard_size, 1, MAX_SHARD_SIZE)
        self._sizing = sizing or ShardSizing()
        self._seams = list(seams)
        self._appended: list[int] = []
        """Seams behind which there are rows."""
        self._waiting: list[PlannedRow] = []
        """Rows that wait for the size of their shards."""
        self._waiting_images = 0
        self.rejected = RejectedRowsFile()
        self.image_steps: Counter[Size] = Counter()
        """Denoising steps of all images by size, as far as the workers' defaults are known."""
        self._spec = spec
        self._planner = planner
        self._writer = writer
        self._open: dict[Size, OpenShard] = {}
        self._shards: list[Future[ShardPlan]] = []
        self._seen = _SeenRows() if spec.dedupe else None
        self._rows = self._samples = self._duplicates = 0
        self._counts = dict.fromkeys(ROW_COUNTS.values(), 0)
        self._loras: set[str] = set()
        self._controlnets: set[str] = set()
        """Names of the LoRA and of the ControlNets that the rows use."""
        self._tables: list[tuple[str, str | None]] = []
        """Name and digest of each table."""
        self._folder: Path | None = None
        self.next_row = self._first_row = 0

    def begin(self, table: Table, folder: Path | None) -> None:
        """Begin with the rows of the next table. See `TableSource.folder`."""
        self._tables.append((table.name, table.sha256()))
        self._folder = folder
        self._first_row = self.next_row

    def add(self, row: Row | None) -> None:
        """Add the next row, or a blank line, which only takes a number."""
        number = self.next_row
        self.next_row += 1
        if row is None:
            return
        planned = self._planner.plan_row(number, row, self._folder)
        if isinstance(planned, RejectedRow):
            place = (self._tables[-1][0], number - self._first_row)
            self.rejected.add(number, planned, place if len(self._tables) > 1 else None)
            return
        if number >= MAX_ROWS:
            raise InvalidRequest("input", number, f"must have at most {MAX_ROWS} rows")
        if self._seen is not None and not self._seen.is_new(planned):
            self._duplicates += 1
            return
        if self._seams and number >= self._seams[0]:
            self._pass_seam(number)
        for field in planned.counted:
            self._counts[field] += 1
        self._loras.update(name for name, _ in planned.loras)
        self._controlnets.update(filter(None, [planned.controlnet]))
        self.image_steps[planned.size] += planned.images * planned.steps
        if self._shard_size is not None:
            self._place(planned, self._shard_size)
            return
        self._waiting.append(planned)
        self._waiting_images += planned.images
        if self._waiting_images > self._sizing.enough_images:
            self._place_waiting(self._sizing.size_if_enough())

    def _pass_seam(self, number: int) -> None:
        """Close all open shards, because this row lies behind a seam."""
        self._close_all()
        while self._seams and number >= self._seams[0]:
            self._appended.append(self._seams.pop(0))

    def _place_waiting(self, shard_size: int) -> None:
        """Put the waiting rows into shards of this size, which later rows get too."""
        self._shard_size = shard_size
        for planned in self._waiting:
            self._place(planned, shard_size)
        self._waiting.clear()

    def _place(self, planned: PlannedRow, shard_size: int) -> None:
        shard = self._open.get(planned.size)
        if shard is None:
            shard = self._open[planned.size] = OpenShard()
        if shard.samples + planned.images > shard_size:
            self._close(planned.size, shard)
            shard = self._open[planned.size] = OpenShard()
        shard.lines.append(planned.line)
        shard.samples += planned.images

    def finish(self, offer: Offer | None) -> Plan:
        """Write the last shards and return the plan.

        Args:
            offer: of the run's model, with its digest and those of its LoRA.

        Raises:
            InvalidRequest: no row can be generated, or too many are rejected.
            StorageDenied, StorageUnavailable: a row file cannot be written.
        """
        if self._shard_size is None:
            largest = max((row.images for row in self._waiting), default=1)
            self._place_waiting(self._sizing.size_of(self._waiting_images, largest))
        if not self._shards and not self._open:
            limit = f"has no row that can be generated{self.rejected.first_reason}"
            raise InvalidRequest("input", _describe(self._tables).name, limit)
        self._planner.check_columns()
        self._close_all()
        shards = tuple(shard.result() for shard in self._shards)
        rejected = self.rejected.count
        if self._spec.max_rejected is not None:
            all_rows = self._rows + self._duplicates + rejected
            if (error := self._spec.max_rejected.exceeded(rejected, all_rows)) is not None:
                raise error
        self._writer.put_rejected(self.rejected)
        defaults = self._spec.defaults
        counts: dict[str, Any] = self._counts
        return Plan(
            format=self._spec.format,
            image_format=self._spec.image_format,
            shard_size=self._shard_size,
            parameters=defaults.parameters,
            seed=defaults.seed,
            model=defaults.model,
            model_digest=None if offer is None else offer.digest,
            columns=dict(defaults.columns),
            dedupe=self._spec.dedupe,
            loras=_digests(self._loras, None if offer is None else offer.loras),
            controlnets=_digests(self._controlnets, None if offer is None else offer.controlnets),
            source=_describe(self._tables),
            appended=tuple(self._appended),
            rows=self._rows,
            samples=self._samples,
            rejected=rejected,
            duplicates=self._duplicates,
            shards=shards,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            **counts,
        )

    def _close_all(self) -> None:
        for size, shard in self._open.items():
            self._close(size, shard)
        self._open.clear()

    def _close(self, size: Size, shard: OpenShard) -> None:
        self._rows += len(shard.lines)
        self._samples += shard.samples
        name = shard_name(len(self._shards))
        self._shards.append(self._writer.put_rows(name, size, shard))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rejected.close()
        if self._seen is not None:
            self._seen.close()


class _SeenRows:
    """The hashes of all rows so far, on disk: in memory, 10 million rows would take 1 GB."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="imagefleet-seen-")  # noqa: SIM115
        self._rows = sqlite3.connect(self._file.name, isolation_level=None)
        self._rows.execute("PRAGMA journal_mode=OFF")
        self._rows.execute("PRAGMA synchronous=OFF")
        self._rows.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")

    def is_new(self, planned: PlannedRow) -> bool:
        digest = hashlib.sha256(planned.duplicate_key.encode()).digest()[:16]
        insert = self._rows.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
        return insert.rowcount == 1

    def close(self) -> None:
        self._rows.close()
        self._file.close()


def _describe(tables: Sequence[tuple[str, str | None]]) -> Source:
    """Return the source of a plan. Several files have the digest of the list of their digests."""
    if len(tables) == 1:
        return Source(name=tables[0][0], sha256=tables[0][1])
    names = [name for name, _ in tables]
    name = f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)
    listing = "".join(f"{sha256}\n" for _, sha256 in tables)
    return Source(name=name, sha256=hashlib.sha256(listing.encode()).hexdigest())


def _digests(names: Iterable[str], offered: Mapping[str, str] | None) -> dict[str, str | None]:
    """Return the digest of each file that rows choose; None if no worker has announced any."""
    return {name: None if offered is None else offered[name] for name in sorted(names)}
