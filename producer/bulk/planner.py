"""From rows to a plan in the destination, streaming: memory holds one open shard a picture size.

`plan.json` is written last. A destination without it has no plan, whatever else lies there; one
with the plan of other work is refused and left as it is.
"""

import hashlib
import sqlite3
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from imagefleet.producer.bulk.readers import Input, RejectedRow, Row, Rows, open_rows
from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.row_validation import (
    PlannedRow,
    RowDefaults,
    RowPlanner,
    Size,
    escape_surrogates,
)
from imagefleet.shared.bulk.file_layout import MAX_ROWS, PLAN, REJECTED, plan_key, shard_name
from imagefleet.shared.bulk.plan import BulkFormat, Plan, ShardPlan, Source
from imagefleet.shared.errors import InvalidRequest, PlanConflict
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.storage import ObjectStore

_WRITERS: Final = 8
_IN_FLIGHT: Final = 32
"""Files of rows waiting to be written; of 1,000 prompts each about 100 KiB."""
MAX_SHARD_SIZE: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A whole dataset, as asked for."""

    defaults: RowDefaults
    format: BulkFormat
    image_format: ImageFormat
    dedupe: bool = False


def plan(
    rows: Rows, spec: DatasetSpec, store: ObjectStore, offers: dict[str, Offer]
) -> tuple[Plan, bool]:
    """Plan `rows` in `store`. The plan, and whether it stood there already.

    Raises:
        InvalidRequest: the input or what holds for all rows is wrong, or no row can be painted.
        PlanConflict: other work is planned there.
        StorageDenied, StorageUnavailable: it cannot be written; no plan is left behind.
    """
    if not 1 <= spec.defaults.shard_size <= MAX_SHARD_SIZE:
        limit = f"must be between 1 and {MAX_SHARD_SIZE}"
        raise InvalidRequest("shard_size", spec.defaults.shard_size, limit)
    planner = RowPlanner(spec.defaults, offers)
    existing = read_plan(store)
    found = open_rows(rows)
    _check_columns(spec.defaults, found)
    if existing is None:
        store.check()
    writer = _Writer(store, existing)
    with writer, _PlanBuilder(spec, planner, writer) as builder:
        for number, row in enumerate(found.rows):
            if row is not None:
                builder.add(number, row)
        made = builder.finish(found.source, _model_digest(spec, offers))
    if existing is not None:
        _check_same_work(existing, made, store)
        return existing, True
    store.put(PLAN, made.dump(), "application/json")
    return made, False


def read_plan(store: ObjectStore) -> Plan | None:
    """The plan that stands in `store`. Raises PlanDamaged."""
    try:
        return Plan.load(store.get(PLAN))
    except KeyError:
        return None


@dataclass
class _OpenShard:
    lines: list[str] = field(default_factory=list)
    samples: int = 0


class _PlanBuilder:
    """The plan as far as the rows have been read."""

    def __init__(self, spec: DatasetSpec, planner: RowPlanner, writer: "_Writer") -> None:
        self._spec = spec
        self._planner = planner
        self._writer = writer
        self._open: dict[Size, _OpenShard] = {}
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
            shard = self._open[planned.size] = _OpenShard()
        if shard.samples + planned.images > self._spec.defaults.shard_size:
            self._close(planned.size, shard)
            shard = self._open[planned.size] = _OpenShard()
        shard.lines.append(planned.line)
        shard.samples += planned.images

    def finish(self, source: Source, model_digest: str | None) -> Plan:
        for size, shard in self._open.items():
            self._close(size, shard)
        if not self._shards:
            raise InvalidRequest("input", source.name, f"has no row to paint{self._rejected.first}")
        self._planner.check_columns()
        shards = tuple(shard.result() for shard in self._shards)
        self._writer.put_file(REJECTED, self._rejected)
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

    def _close(self, size: Size, shard: _OpenShard) -> None:
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


class _Writer:
    """Writes files of rows on threads, a bounded number at once. Where a plan `existing`, only those
    that were planned and are gone."""

    def __init__(self, store: ObjectStore, existing: Plan | None) -> None:
        self._store = store
        self._missing: set[tuple[str, str]] | None = None
        """Names of shards with the SHA-256 of their rows; None means all."""
        if existing is not None:
            there = set(store.list("plan/"))
            self._missing = {
                (shard.name, shard.sha256)
                for shard in existing.shards
                if plan_key(shard.name) not in there
            }
        self._threads = ThreadPoolExecutor(_WRITERS, thread_name_prefix="plan")
        self._free_slots = threading.BoundedSemaphore(_IN_FLIGHT)
        self._failed: BaseException | None = None

    def put_rows(self, name: str, size: Size, shard: _OpenShard) -> "Future[ShardPlan]":
        """Raises what an earlier file met."""
        self._free_slots.acquire()
        if self._failed is not None:
            raise self._failed
        return self._threads.submit(self._put_rows, name, size, shard)

    def put_file(self, key: str, rejected: RejectedRowsFile) -> None:
        if self._missing is None and rejected.count:
            self._store.put_file(key, rejected.file, "application/jsonl")

    def _put_rows(self, name: str, size: Size, shard: _OpenShard) -> ShardPlan:
        try:
            data = "\n".join((*shard.lines, "")).encode()
            sha256 = hashlib.sha256(data).hexdigest()
            if self._missing is None or (name, sha256) in self._missing:
                self._store.put(plan_key(name), data, "application/jsonl")
            return ShardPlan(
                name=name,
                rows=len(shard.lines),
                samples=shard.samples,
                sha256=sha256,
                height=size[0],
                width=size[1],
            )
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._free_slots.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


class _SeenRows:
    """What was asked for before, by its hash, on disk: in memory 10 million rows take 1 GB."""

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


def _check_columns(defaults: RowDefaults, found: Input) -> None:
    """Whether what is taken from columns can be, where they are known before the rows. Raises
    InvalidRequest."""
    for name, column in defaults.columns.items():
        if found.columns is not None and column not in found.columns:
            there = escape_surrogates(", ".join(found.columns)) or "none"
            limit = f"{found.source.name} has no such column; there are {there}"
            raise InvalidRequest("column", f"{name}={column}", limit)


def _model_digest(spec: DatasetSpec, offers: dict[str, Offer]) -> str | None:
    offer = offers.get(spec.defaults.model or DEFAULT_MODEL)
    return None if offer is None else offer.digest


def _check_same_work(existing: Plan, made: Plan, store: ObjectStore) -> None:
    """Raises PlanConflict."""
    if not existing.is_same_work(made):
        fields = [
            name
            for name in Plan.model_fields
            if name not in ("created_at", "source", "model_digest")
            and getattr(existing, name) != getattr(made, name)
        ]
        raise PlanConflict(
            f"{store.url} holds the plan of other work: {', '.join(fields)} differ; "
            "take another destination, or give the same input and parameters to go on"
        )
    if existing.model_digest and made.model_digest and existing.model_digest != made.model_digest:
        raise PlanConflict(
            f"{store.url} was planned for model {existing.model_digest}, the fleet has "
            f"{made.model_digest} now; a dataset is made by one model"
        )
