"""Say what a bulk run would make, how long it would take and how large it would be.

Input: the tables and the options of `start_run.start`. Output: a `DryRun`. Nothing is written,
uploaded or queued.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import Rows, find_sources
from imagefleet.producer.bulk.plan_builder import PlanBuilder
from imagefleet.producer.bulk.plan_writer import OpenShard
from imagefleet.producer.bulk.planner import (
    add_rows,
    check_columns,
    check_no_other_dataset,
    check_same_work,
    keep_shard_size,
    read_plan,
)
from imagefleet.producer.bulk.rejected import RejectedRowsFile
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.row_validation import RowPlanner, Size
from imagefleet.producer.bulk.shard_sizes import ShardSizing
from imagefleet.producer.bulk.start_run import open_new_destination
from imagefleet.producer.bulk.worker_formats import check_formats, living_workers
from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus

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
    **options: Any,
) -> DryRun:
    """Check every row and estimate the run that `start` would start with these arguments.

    Raises:
        InvalidRequest, PlanConflict, ConfigurationError: what `start` would raise.
        StorageDenied, StorageUnavailable: the input or the destination cannot be read.
    """
    offers = connection.offers()
    images = RowImages(read_files=upload_files)
    spec = parse_spec(images, **options)
    most, spec = spec.max_rejected, replace(spec, max_rejected=None)  # first list the rows
    url, store = open_new_destination(destination, connection)
    sources = find_sources(rows, input_format, url, delimiter=delimiter, encoding=encoding)
    living = living_workers(spec.defaults.model, offers, connection.worker_statuses())
    check_formats(spec, living)
    existing = read_plan(store)
    spec = keep_shard_size(spec, existing)
    planner = RowPlanner(spec.defaults, offers, images)
    check_columns(sources, spec.defaults)
    sizing = ShardSizing.of(living)
    with PlanBuilder(spec, planner, _UnwrittenShards(), sizing) as builder:
        add_rows(sources, spec, builder)
        plan = builder.finish(None)
        rejected_rows = tuple(builder.rejected.first(_MAX_LISTED_ROWS))
    if existing is not None:
        check_same_work(existing, plan, store)
    else:
        check_no_other_dataset(plan, store)
    all_rows = plan.rows + plan.duplicates + plan.rejected
    refused = most and most.exceeded(plan.rejected, all_rows)
    offer = offers.get(spec.defaults.model or DEFAULT_MODEL)
    workers = [each for each in living if offer and each.state is WorkerState.READY]
    seconds, unknown = _seconds(builder.image_steps, offer, workers)
    pixels = _pixels(plan.shards, offer)
    return DryRun(
        rows=plan.rows,
        images=plan.samples,
        shards=len(plan.shards),
        input_images=plan.input_images,
        input_latents=plan.input_latents,
        duplicates=plan.duplicates,
        rejected=plan.rejected,
        rejected_rows=rejected_rows,
        refused=None if refused is None else str(refused),
        is_planned=existing is not None,
        workers=len(workers),
        seconds=seconds,
        seconds_unknown=unknown,
        size=_size(plan, pixels, workers),
        size_limit=None if pixels is None else pixels * _RAW_BYTES_PER_PIXEL,
    )


class _UnwrittenShards:
    """Takes the rows of full shards and keeps none."""

    def put_rows(self, name: str, size: Size, shard: OpenShard) -> "Future[ShardPlan]":
        described: Future[ShardPlan] = Future()
        described.set_result(shard.describe(name, size))
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
