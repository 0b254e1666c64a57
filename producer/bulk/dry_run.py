"""Say what a bulk run would make, how long it would take and how large it would be.

Input: the tables and the options of `start_run.start`. Output: a `DryRun`. Nothing is written,
uploaded or queued.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import Rows, TableSource
from imagefleet.producer.bulk.plan_builder import DatasetSpec, PlanBuilder
from imagefleet.producer.bulk.plan_checks import (
    check_no_other_dataset,
    check_same_options,
    check_same_work,
    grown,
    seams_of,
)
from imagefleet.producer.bulk.plan_comparison import PlanComparison
from imagefleet.producer.bulk.plan_writer import OpenShard
from imagefleet.producer.bulk.planner import (
    add_rows,
    check_columns,
    keep_shard_size,
    read_plan,
)
from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.row_validation import RowDefaults, RowPlanner, Size
from imagefleet.producer.bulk.run_inputs import RunInputs
from imagefleet.producer.bulk.shard_sizes import ShardSizing
from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.storage import ObjectStore

_MAX_LISTED_ROWS: Final = 20
_RAW_BYTES_PER_PIXEL: Final = 3


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a bulk run would make."""

    rows: int
    images: int
    shards: int
    input_images: int
    """It counts the rows that start from an image."""
    input_latents: int
    """Rows that go on with latents."""
    duplicates: int
    rejected: int
    rejected_rows: tuple[Mapping[str, object], ...]
    """The first of them are listed: row, field, value, reason."""
    refused: str | None
    """It is the sentence that refuses the run because of these rows. None: it would start."""
    is_planned: bool
    """Whether the destination holds this plan already, so that the run would resume it."""
    new_images: int
    """It counts the images that the destination's plan does not have yet."""
    workers: int
    """Ready workers that serve the model."""
    seconds: float | None
    """Estimated time if these workers do nothing else. None: see `seconds_unknown`."""
    seconds_unknown: str | None
    size: int | None
    """It estimates the bytes of all images by the latest files of the workers. None: see
    `size_limit`."""
    size_limit: int | None
    """It counts the bytes of the pixels without compression. None before a worker has announced the
    size of the model's images."""


def dry_run(
    connection: Connection,
    rows: Rows,
    destination: str | Path,
    *,
    input_format: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    upload_files: bool = False,
    append: bool = False,
    **options: Any,
) -> DryRun:
    """Check every row and estimate the run that `start` would start with these arguments.

    Raises:
        InvalidRequest, PlanConflict, ConfigurationError: what `start` would raise.
        StorageDenied, StorageUnavailable: the input or the destination cannot be read.
    """
    images = RowImages(read_files=upload_files)
    spec = parse_spec(images, **options)
    most, spec = spec.max_rejected, replace(spec, max_rejected=None)  # first list the rows
    inputs = RunInputs.open(
        connection,
        rows,
        destination,
        spec,
        input_format=input_format,
        delimiter=delimiter,
        encoding=encoding,
    )
    planner = partial(RowPlanner, offers=inputs.offers, images=images)
    sizing = ShardSizing.of(inputs.workers)
    planned = _plan(inputs.sources, spec, inputs.store, planner, sizing, append=append)
    plan, existing = planned.plan, planned.existing
    all_rows = plan.rows + plan.duplicates + plan.rejected
    refused = most and most.exceeded(plan.rejected, all_rows)
    offer = inputs.offers.get(spec.defaults.model or DEFAULT_MODEL)
    workers = [each for each in inputs.workers if offer and each.state is WorkerState.READY]
    seconds, unknown = _seconds(planned.image_steps, offer, workers)
    pixels = _pixels(plan.shards, offer)
    return DryRun(
        rows=plan.rows,
        images=plan.samples,
        shards=len(plan.shards),
        input_images=plan.input_images,
        input_latents=plan.input_latents,
        duplicates=plan.duplicates,
        rejected=plan.rejected,
        rejected_rows=planned.rejected_rows,
        refused=None if refused is None else str(refused),
        is_planned=existing is not None and not planned.grows,
        new_images=plan.samples - (existing.samples if existing is not None else 0),
        workers=len(workers),
        seconds=seconds,
        seconds_unknown=unknown,
        size=_size(plan, pixels, workers),
        size_limit=None if pixels is None else pixels * _RAW_BYTES_PER_PIXEL,
    )


class _Planned(NamedTuple):
    """What a run would write, and what there is already."""

    plan: Plan
    existing: Plan | None
    grows: bool
    """Whether rows would be appended to the existing plan."""
    image_steps: Mapping[Size, int]
    rejected_rows: tuple[Mapping[str, object], ...]


def _plan(
    sources: Sequence[TableSource],
    spec: DatasetSpec,
    store: ObjectStore,
    planner: Callable[[RowDefaults], RowPlanner],
    sizing: ShardSizing,
    *,
    append: bool,
) -> _Planned:
    """Plan all rows and check the plan against the one that `store` holds."""
    existing = read_plan(store)
    spec = keep_shard_size(spec, existing)
    row_planner = planner(spec.defaults)
    check_columns(sources, spec.defaults)
    appends = append and existing is not None
    seams = seams_of(existing, store, appends=appends)
    comparison = None if existing is None else PlanComparison(existing, store)
    unwritten = _UnwrittenShards(comparison)
    with PlanBuilder(spec, row_planner, unwritten, sizing, seams=seams) as builder:
        if existing is not None and appends:
            check_same_options(existing, spec, store)
        add_rows(sources, spec, builder)
        plan = builder.finish(None)
        rejected_rows = tuple(builder.rejected.first(_MAX_LISTED_ROWS))
    grows = appends and len(plan.appended) == len(seams)
    if existing is None:
        check_no_other_dataset(plan, store)
    elif grows:
        plan = grown(existing, plan, store, comparison)
    else:
        check_same_work(existing, plan, store, comparison)
    return _Planned(plan, existing, grows, builder.image_steps, rejected_rows)


class _UnwrittenShards:
    """Takes the rows of full shards and keeps none. It compares them with those of the plan that is
    there, if any."""

    def __init__(self, comparison: PlanComparison | None) -> None:
        self._comparison = comparison

    def put_rows(self, name: str, size: Size, shard: OpenShard) -> "Future[ShardPlan]":
        described: Future[ShardPlan] = Future()
        planned = shard.describe(name, size)
        if self._comparison is not None:
            self._comparison.add(self._comparison.next_stored(size), planned, shard.lines)
        described.set_result(planned)
        return described

    def put_rejected(self, rejected: RejectedRowsFile) -> None:
        return None


def _seconds(
    image_steps: Mapping[Size, int], offer: Offer | None, workers: Sequence[WorkerStatus]
) -> tuple[float | None, str | None]:
    """Return the estimated seconds, or the reason why they are not known.

    A worker that has not generated a shape yet counts as fast as the mean of the others.
    """
    if offer is None or not workers:
        return None, "no worker"
    seconds = 0.0
    for size, steps in image_steps.items():
        shape = "x".join(map(str, _resolved(size, offer)))
        rates = [
            each.capacity / each.step_s_by_shape[shape]
            for each in workers
            if each.step_s_by_shape.get(shape)
        ]
        if not rates:
            return None, f"no living worker has generated an image of {shape} yet"
        seconds += steps / (_mean(rates) * len(workers))
    return seconds, None


def _pixels(shards: Iterable[ShardPlan], offer: Offer | None) -> int | None:
    """Return the pixels of all images; None if the model's size is not known."""
    pixels = 0
    for shard in shards:
        height, width = _resolved((shard.height, shard.width), offer)
        if height is None or width is None:
            return None
        pixels += shard.samples * height * width
    return pixels


def _size(plan: Plan, pixels: int | None, workers: Sequence[WorkerStatus]) -> int | None:
    """Return the estimated bytes; None if no worker made such files yet."""
    kind = plan.image_format.value
    known = [each.bytes_per_pixel[kind] for each in workers if kind in each.bytes_per_pixel]
    return None if pixels is None or not known else round(pixels * _mean(known))


def _resolved(size: Size, offer: Offer | None) -> Size:
    return offer.shapes[0] if offer is not None and size == (None, None) else size


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
