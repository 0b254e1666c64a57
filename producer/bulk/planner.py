"""Plan a dataset: read its tables row by row and write the plan to the destination.

Input: tables, a `DatasetSpec` and a store. Output: the plan and its row files. Memory holds one
open shard per image size. `plan.json` is written last: a destination without it has no plan,
whatever other files it holds. A destination that holds another plan is refused and stays unchanged.
"""

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from imagefleet.producer.bulk.alternatives import find
from imagefleet.producer.bulk.column_names import MAX_COLUMNS
from imagefleet.producer.bulk.copied_columns import escape_surrogates
from imagefleet.producer.bulk.inputs import TableSource
from imagefleet.producer.bulk.plan_builder import DatasetSpec, PlanBuilder
from imagefleet.producer.bulk.plan_checks import (
    check_no_other_dataset,
    check_same_options,
    check_same_work,
    grown,
    seams_of,
)
from imagefleet.producer.bulk.plan_comparison import PlanComparison
from imagefleet.producer.bulk.plan_writer import PlanWriter
from imagefleet.producer.bulk.readers import Table
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.row_validation import RowDefaults, RowPlanner
from imagefleet.producer.bulk.rows import Row
from imagefleet.producer.bulk.shard_sizes import ShardSizing
from imagefleet.shared.bulk.file_layout import CARD, CONTACT_SHEET, MAX_TEXT_BYTES, PLAN, RUN_STATS
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.errors import InvalidRequest, PlanConflict
from imagefleet.shared.jobs.foreign_names import FOREIGN_NAMES, plain_name
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.base import check_size
from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

_NOT_EXPANDED: Final = (
    "%s: row %d holds %s, which is read as text; --alternatives and --wildcards (in Python "
    "alternatives= and wildcards=) expand it"
)


def plan_dataset(
    sources: Sequence[TableSource],
    spec: DatasetSpec,
    store: ObjectStore,
    offers: dict[str, Offer],
    images: RowImages,
    sizing: ShardSizing | None = None,
    *,
    before_append: Callable[[Plan], object] | None = None,
) -> tuple[Plan, bool]:
    """Write the plan for the rows of `sources` to `store`. Return it, and whether the store already
    held it.

    Args:
        sizing: chooses the size of the shards, unless `spec` has one, or the plan in `store`.
        before_append: if the plan in `store` has the first of these rows, the others are appended
            to it. This is called with that plan before it is replaced. None: it is refused.

    Raises:
        InvalidRequest: the input or a parameter of all rows is wrong, or no row can be generated.
        PlanConflict: the store holds another plan, or a finished dataset of another one.
        StorageDenied, StorageUnavailable: the plan cannot be written; no plan is left behind.
    """
    existing = read_plan(store)
    appends = existing is not None and before_append is not None
    spec = keep_shard_size(spec, existing)
    planner = RowPlanner(spec.defaults, offers, images)
    check_columns(sources, spec.defaults)
    seams = seams_of(existing, store, appends=appends)
    comparison = None if existing is None else PlanComparison(existing, store)
    writer = PlanWriter(store, comparison, appends=appends)
    with writer, PlanBuilder(spec, planner, writer, sizing, seams=seams) as builder:
        if existing is not None and appends:
            check_same_options(existing, spec, store)
        add_rows(sources, spec, builder)
        images.finish()
        plan = builder.finish(offers.get(spec.defaults.model or DEFAULT_MODEL))
        if existing is None:
            check_no_other_dataset(plan, store)
    if existing is not None and before_append is not None and len(plan.appended) == len(seams):
        plan = grown(existing, plan, store, comparison)
        if read_plan(store) != existing:
            sentence = f"{store.url}: another command has changed the plan meanwhile"
            raise PlanConflict(f"{sentence}; give this command again")
        before_append(existing)
        for key in (RUN_STATS, CARD, CONTACT_SHEET):  # of the smaller dataset
            store.delete(key)
        _put_plan(plan, store)
        return plan, False
    existing = existing or read_plan(store)  # another command may have planned meanwhile
    if existing is not None:
        check_same_work(existing, plan, store, comparison)
        return existing, True
    _put_plan(plan, store)
    return plan, False


def _put_plan(plan: Plan, store: ObjectStore) -> None:
    data = plan.dump()
    check_size(PLAN, len(data), MAX_TEXT_BYTES)
    store.put(PLAN, data, "application/json")


def check_columns(sources: Sequence[TableSource], defaults: RowDefaults) -> None:
    """Raise InvalidRequest if a local file lacks the column of a parameter."""
    for source in sources:
        if source.is_local_file:
            with source.open() as table:
                _check_columns(defaults, table)


def add_rows(sources: Sequence[TableSource], spec: DatasetSpec, builder: PlanBuilder) -> None:
    """Add the rows of all tables to a plan, at most `spec.limit` of them."""
    wanted = float("inf") if spec.limit is None else spec.limit
    for source in sources:
        if wanted <= 0:
            return
        with source.open() as table:
            _check_columns(spec.defaults, table)
            builder.begin(table, source.folder)
            for row in _expanded(table, spec, builder):
                if wanted <= 0:
                    break
                builder.add(row)
                wanted -= row is not None


def keep_shard_size(spec: DatasetSpec, existing: Plan | None) -> DatasetSpec:
    """Return `spec` with the shard size of the plan that is there, unless the user chose one."""
    if existing is None or spec.defaults.shard_size is not None:
        return spec
    return replace(spec, defaults=replace(spec.defaults, shard_size=existing.shard_size))


def _expanded(table: Table, spec: DatasetSpec, builder: PlanBuilder) -> Iterator[Row | None]:
    """Yield the rows of a table, with their alternatives if the run expands them."""
    columns, seed = spec.defaults.columns, spec.defaults.seed
    if spec.alternatives.mode is None:
        yield from _noticing(table, columns, builder)
        return
    for row in table.rows:
        if row is None:
            yield row
        else:
            yield from spec.alternatives.rows_of(
                row, builder.next_row, run_seed=seed, columns=columns
            )


def _noticing(
    table: Table, columns: Mapping[str, str], builder: PlanBuilder
) -> Iterator[Row | None]:
    """Yield the rows of a table, and warn of the first one with alternatives."""
    for row in table.rows:
        # Most rows are plain prompts; this looks at them in 0.1 µs each.
        is_plain = type(row) is str and "{" not in row and "__" not in row
        if not is_plain and (text := find(row, columns)):
            log.warning(_NOT_EXPANDED, table.name, builder.next_row, printable(text, 60))
            yield row
            break
        yield row
    yield from table.rows


def read_plan(store: ObjectStore) -> Plan | None:
    """Return the plan in `store`, or None. Raise PlanDamaged if it cannot be read."""
    try:
        return Plan.load(store.get(PLAN))
    except KeyError:
        return None


def _check_columns(defaults: RowDefaults, table: Table) -> None:
    """Raise InvalidRequest if a parameter's column is missing from the input's known columns."""
    if table.columns is None:
        return
    if (columns := len(table.columns)) > MAX_COLUMNS:
        limit = f"has {columns:,} columns; leave some out: at most {MAX_COLUMNS:,} are read"
        raise InvalidRequest("input", table.name, limit)
    known = escape_surrogates(", ".join(table.columns)) or "none"
    limit = f"{table.name} has no such column; its columns: {known}"
    for name, column in defaults.columns.items():
        if column not in table.columns:
            raise InvalidRequest("column", f"{name}={column}", limit)
    if table.columns and "prompt" not in (*table.columns, *defaults.columns):
        column = next(filter(_may_hold_prompts, table.columns), "COLUMN")
        raise InvalidRequest(
            "column",
            "prompt",
            f"{limit}; name the one with the prompts with --column "
            f"{shlex.quote(f'prompt={column}')} (in Python columns={{'prompt': {column!r}}})",
        )


def _may_hold_prompts(column: str) -> bool:
    plain = plain_name(column)
    return plain == "prompt" or (plain in FOREIGN_NAMES and FOREIGN_NAMES[plain].ours == "prompt")
