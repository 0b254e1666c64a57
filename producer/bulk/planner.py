"""Plan a dataset: read its rows as a stream and write the plan to the destination.

Rows, a `DatasetSpec` and a store go in; the plan and its row files come out. Memory holds one open
shard per image size. `plan.json` is written last: a destination without it has no plan, whatever
other files it holds. A destination that holds another plan is refused and stays unchanged.
"""

import hashlib
import sqlite3
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from imagefleet.producer.bulk.plan_writer import OpenShard, PlanWriter
from imagefleet.producer.bulk.readers import Input, RejectedRow, Row, Rows, open_rows
from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.row_validation import (
    PlannedRow,
    RowDefaults,
    RowPlanner,
    Size,
    escape_surrogates,
)
from imagefleet.shared.bulk.file_layout import MAX_ROWS, PLAN, shard_name
from imagefleet.shared.bulk.plan import BulkFormat, Plan, ShardPlan, Source
from imagefleet.shared.errors import InvalidRequest, PlanConflict
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.storage import ObjectStore

MAX_SHARD_SIZE: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The parameters of a whole dataset, as the user gave them."""

    defaults: RowDefaults
    format: BulkFormat
    image_format: ImageFormat
    dedupe: bool = False


def plan_dataset(
    rows: Rows, spec: DatasetSpec, store: ObjectStore, offers: dict[str, Offer]
) -> tuple[Plan, bool]:
    """Write the plan for `rows` to `store`. Return it, and whether the store already held it.

    Raises:
        InvalidRequest: the input or a parameter of all rows is wrong, or no row can be generated.
        PlanConflict: the store holds another plan.
        StorageDenied, StorageUnavailable: the plan cannot be written; no plan is left behind.
    """
    if not 1 <= spec.defaults.shard_size <= MAX_SHARD_SIZE:
        limit = f"must be between 1 and {MAX_SHARD_SIZE}"
        raise InvalidRequest("shard_size", spec.defaults.shard_size, limit)
    planner = RowPlanner(spec.defaults, offers)
    existing = read_plan(store)
    source_rows = open_rows(rows)
    _check_columns(spec.defaults, source_rows)
    writer = PlanWriter(store, existing)
    with writer, _PlanBuilder(spec, planner, writer) as builder:
        for number, row in enumerate(source_rows.rows):
            if row is not None:
                builder.add(number, row)
        plan = builder.finish(source_rows.source, _model_digest(spec, offers))
    existing = existing or read_plan(store)  # another command may have planned meanwhile
    if existing is not None:
        _check_same_work(existing, plan, store)
        return existing, True
    store.put(PLAN, plan.dump(), "application/json")
    return plan, False


def read_plan(store: ObjectStore) -> Plan | None:
    """Return the plan in `store`, or None. Raise PlanDamaged if it cannot be read."""
    try:
        return Plan.load(store.get(PLAN))
    except KeyError:
        return None


class _PlanBuilder:
    """Collects rows into shards, and builds the plan from them."""

    def __init__(self, spec: DatasetSpec, planner: RowPlanner, writer: PlanWriter) -> None:
        self._spec = spec
        self._planner = planner
        self._writer = writer
        self._open: dict[Size, OpenShard] = {}
        self._shards: list[Future[ShardPlan]] = []
        self._rejected = RejectedRowsFile()
        self._seen = _SeenRows() if spec.dedupe else None
        self._rows = self._samples = self._duplicates = 0

    def add(self, number: int, row: Row) -> None:
        planned = self._planner.plan_row(number, row)
        if isinstance(planned, RejectedRow):
            self._rejected.add(number, planned)
            return
        if number >= MAX_ROWS:
            raise InvalidRequest("input", number, f"must have at most {MAX_ROWS} rows")
        if self._seen is not None and not self._seen.is_new(planned):
            self._duplicates += 1
            return
        shard = self._open.get(planned.size)
        if shard is None:
            shard = self._open[planned.size] = OpenShard()
        if shard.samples + planned.images > self._spec.defaults.shard_size:
            self._close(planned.size, shard)
            shard = self._open[planned.size] = OpenShard()
        shard.lines.append(planned.line)
        shard.samples += planned.images

    def finish(self, source: Source, model_digest: str | None) -> Plan:
        if not self._shards and not self._open:
            limit = f"has no row that can be generated{self._rejected.first_reason}"
            raise InvalidRequest("input", source.name, limit)
        self._planner.check_columns()
        for size, shard in self._open.items():
            self._close(size, shard)
        shards = tuple(shard.result() for shard in self._shards)
        self._writer.put_rejected(self._rejected)
        defaults = self._spec.defaults
        return Plan(
            format=self._spec.format,
            image_format=self._spec.image_format,
            shard_size=defaults.shard_size,
            parameters=defaults.parameters,
            seed=defaults.seed,
            model=defaults.model,
            model_digest=model_digest,
            columns=dict(defaults.columns),
            dedupe=self._spec.dedupe,
            source=source,
            rows=self._rows,
            samples=self._samples,
            rejected=self._rejected.count,
            duplicates=self._duplicates,
            shards=shards,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _close(self, size: Size, shard: OpenShard) -> None:
        self._rows += len(shard.lines)
        self._samples += shard.samples
        name = shard_name(len(self._shards))
        self._shards.append(self._writer.put_rows(name, size, shard))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rejected.close()
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


def _check_columns(defaults: RowDefaults, source_rows: Input) -> None:
    """Raise InvalidRequest if a parameter's column is missing from the input's known columns."""
    if source_rows.columns is None:
        return
    known = escape_surrogates(", ".join(source_rows.columns)) or "none"
    limit = f"{source_rows.source.name} has no such column; its columns: {known}"
    for name, column in defaults.columns.items():
        if column not in source_rows.columns:
            raise InvalidRequest("column", f"{name}={column}", limit)
    if source_rows.columns and "prompt" not in (*source_rows.columns, *defaults.columns):
        raise InvalidRequest(
            "column",
            "prompt",
            f"{limit}; name the one with the prompts with --column prompt=COLUMN (in Python "
            "columns={'prompt': 'COLUMN'})",
        )


def _model_digest(spec: DatasetSpec, offers: dict[str, Offer]) -> str | None:
    offer = offers.get(spec.defaults.model or DEFAULT_MODEL)
    return None if offer is None else offer.digest


def _check_same_work(existing: Plan, new: Plan, store: ObjectStore) -> None:
    """Raise PlanConflict if the stored plan is not `new`, or if their models differ."""
    if not existing.is_same_work(new):
        fields = [
            name
            for name in Plan.model_fields
            if name not in ("created_at", "source", "model_digest")
            and getattr(existing, name) != getattr(new, name)
        ]
        raise PlanConflict(
            f"{store.url} holds another plan: {', '.join(fields)} differ; use another destination, "
            "or give the same input and parameters to continue this one"
        )
    if existing.model_digest and new.model_digest and existing.model_digest != new.model_digest:
        raise PlanConflict(
            f"{store.url} was planned for model {existing.model_digest}, but the fleet has "
            f"{new.model_digest} now; one model must generate the whole dataset"
        )
