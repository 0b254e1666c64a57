"""The plan is named by what it asks for, and a row's seed by its place."""

import hashlib

import pytest

from imagefleet.shared.bulk.plan import (
    Plan,
    RowParameters,
    ShardPlan,
    ShardRow,
    Source,
    derive_seed,
)
from imagefleet.shared.errors import PlanDamaged

ROWS = (
    b'{"prompt":"a","row":0,"seed":1}\n{"num_images_per_prompt":3,"prompt":"b","row":1,"seed":2}\n'
)
SHARD = ShardPlan(
    name="00000", rows=2, samples=5, sha256=hashlib.sha256(ROWS).hexdigest(), height=64, width=32
)


def _plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "shard_size": 10,
        "parameters": RowParameters(num_images_per_prompt=2, guidance_scale=3.0),
        "source": Source(name="prompts.txt"),
        "rows": 2,
        "samples": 5,
        "shards": (SHARD,),
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Plan.model_validate({**fields, **changes})


def test_the_digest_knows_what_is_asked_for_and_not_when() -> None:
    later = _plan(created_at="2027-01-01T00:00:00+00:00")
    assert later.digest == _plan().digest
    assert _plan(seed=1).digest != _plan().digest


def test_a_plan_made_before_any_worker_told_its_model_is_the_same_work() -> None:
    assert _plan().is_same_work(_plan(model_digest="sha256:1", source=Source(name="elsewhere")))
    assert not _plan().is_same_work(_plan(shard_size=11))


def test_a_plan_survives_being_written() -> None:
    assert Plan.load(_plan(columns={"prompt": "caption"}).dump()).columns == {"prompt": "caption"}
    with pytest.raises(PlanDamaged):
        Plan.load(_plan().dump()[:40])


def test_a_row_asks_for_what_it_says_and_the_plan_for_the_rest() -> None:
    plan = _plan()
    first, second = plan.read_rows(SHARD, ROWS)
    request = plan.request(SHARD, second)
    assert (request.num_images_per_prompt, request.guidance_scale, request.seed) == (3, 3.0, 2)
    assert (request.height, request.width) == (64, 32)
    assert [plan.images_of(row) for row in (first, second)] == [2, 3]


def test_rows_that_are_not_the_planned_ones_are_refused() -> None:
    with pytest.raises(PlanDamaged, match="00000"):
        list(_plan().read_rows(SHARD, ROWS[:-1]))


def test_a_row_that_cannot_be_read_is_a_damaged_plan() -> None:
    data = b'{"prompt":"a","row":0,"seed":1,"extra":{"m":' + b"[" * 300 + b"]" * 300 + b"}}\n"
    shard = SHARD.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
    with pytest.raises(PlanDamaged, match="cannot be read"):
        list(_plan().read_rows(shard, data))


def test_no_two_rows_of_a_run_derive_one_seed() -> None:
    seeds = {derive_seed(7, row) for row in range(100_000)}
    assert len(seeds) == 100_000
    assert derive_seed(7, 0) != derive_seed(8, 0)
    assert ShardRow(row=0, prompt="a", seed=derive_seed(0, 0)).seed == 0
