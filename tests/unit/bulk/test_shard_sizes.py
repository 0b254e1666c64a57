"""Without `shard_size` the size of the shards follows the rows and the living workers."""

from typing import Any

import pytest

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.bulk.planner import plan_dataset
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.shard_sizes import ShardSizing
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.errors import PlanConflict
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.memory import MemoryStore


def _plan(rows: int, hosts: int, store: ObjectStore | None = None, **options: Any) -> Plan:
    """Plan a dataset while workers of so many hosts live, each with batches of 8 images."""
    workers = [
        WorkerStatus(worker=f"host-{n}:1:x", state=WorkerState.READY, capacity=8)
        for n in range(hosts)
    ]
    images = RowImages(read_files=False)
    sources = find_sources([f"prompt {n}" for n in range(rows)])
    spec = parse_spec(images, **options)
    sizing = ShardSizing.of(workers)
    return plan_dataset(sources, spec, store or MemoryStore(), {}, images, sizing)[0]


def _sizes(plan: Plan) -> list[int]:
    return [shard.samples for shard in plan.shards]


@pytest.mark.parametrize(
    ("rows", "hosts", "sizes"),
    [
        (498, 0, [498]),
        (498, 1, [498]),
        (498, 2, [64] * 7 + [50]),  # four shards for each host, of whole batches
        (498, 10, [16] * 31 + [2]),  # at least two batches
        (30, 2, [16, 14]),
        (8_000, 2, [1_000] * 8),
        (8_001, 2, [1_000] * 8 + [1]),
        (2_500, 1, [1_000, 1_000, 500]),
        (15_000, 4, [944] * 15 + [840]),
    ],
)
def test_each_living_host_gets_several_shards(rows: int, hosts: int, sizes: list[int]) -> None:
    plan = _plan(rows, hosts)
    assert _sizes(plan) == sizes
    assert plan.samples == rows
    assert max(sizes) <= plan.shard_size


def test_rows_keep_their_order_and_stay_whole() -> None:
    plan = _plan(20, 2, num_images_per_prompt=60)
    assert _sizes(plan) == [120] * 10  # 1,200 images: 152 a shard
    assert _sizes(_plan(3, 2, num_images_per_prompt=64)) == [64] * 3


def test_very_large_fleets_get_work_from_a_plan_that_is_not_kept_in_memory() -> None:
    sizing = ShardSizing(workers=200, batch=8)
    assert sizing.enough_images == 50_000
    assert sizing.size_if_enough() * 200 <= 50_000


def test_a_size_that_the_user_chose_stays() -> None:
    assert _sizes(_plan(498, 2, shard_size=300)) == [300, 198]


def test_a_resumed_run_keeps_the_size_of_its_plan() -> None:
    store = MemoryStore()
    first = _plan(498, 2, store)
    assert _plan(498, 7, store) == first
    assert _plan(498, 0, store) == first
    with pytest.raises(PlanConflict, match="shard_size"):
        _plan(498, 2, store, shard_size=498)
