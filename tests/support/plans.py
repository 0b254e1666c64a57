"""Plan datasets of a few rows as the producer does, and read the rows of a plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.bulk.planner import plan_dataset
from imagefleet.producer.bulk.row_images import UploadedRowImages
from imagefleet.shared.bulk.file_layout import plan_key
from imagefleet.shared.bulk.plan import Plan, ShardRow
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_lookups import ROW_COUNTS
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage import ObjectStore

Rows = Path | Sequence[str | dict[str, Any]]


def plan_rows(
    rows: Rows, store: ObjectStore, offers: dict[str, Offer] | None = None, **options: Any
) -> Plan:
    """Plan a dataset in `store` with the options of `Client.bulk`."""
    with UploadedRowImages(lambda: store, read_files=False) as images:
        spec = parse_spec(images, **options)
        return plan_dataset(find_sources(rows), spec, store, offers or {}, images)[0]


def planned_rows(store: ObjectStore, plan: Plan) -> list[ShardRow]:
    """Return the rows of all shards of a plan."""
    return [
        row
        for shard in plan.shards
        for row in plan.read_rows(shard, store.get(plan_key(shard.name)))
    ]


def planned_requests(store: ObjectStore, plan: Plan) -> list[JobRequest]:
    """Return what each row of a plan asks for. All shards have one image size."""
    return [plan.request(plan.shards[0], row) for row in planned_rows(store, plan)]


def counted(plan: Plan, parameter: str) -> int:
    """Return how many rows of a plan use a parameter, as the plan counts them."""
    return int(getattr(plan, ROW_COUNTS[parameter]))
