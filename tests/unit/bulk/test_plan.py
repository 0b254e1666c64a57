"""The plan's digest depends on its parameters, and a row's seed on its number."""

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


def test_the_digest_depends_on_the_parameters_and_not_on_the_time() -> None:
    later = _plan(created_at="2027-01-01T00:00:00+00:00")
    assert later.digest == _plan().digest
    assert _plan(seed=1).digest != _plan().digest


def test_a_plan_with_and_without_the_model_s_digest_is_the_same_work() -> None:
    assert _plan().is_same_dataset(_plan(model_digest="sha256:1", source=Source(name="elsewhere")))
    assert not _plan().is_same_dataset(_plan(shard_size=11))


def test_a_plan_can_be_written_and_read_again() -> None:
    assert Plan.load(_plan(columns={"prompt": "caption"}).dump()).columns == {"prompt": "caption"}
    with pytest.raises(PlanDamaged):
        Plan.load(_plan().dump()[:40])


def test_a_row_overrides_parameters_of_the_plan() -> None:
    plan = _plan()
    first, second = plan.read_rows(SHARD, ROWS)
    request = plan.request(SHARD, second)
    assert (request.num_images_per_prompt, request.guidance_scale, request.seed) == (3, 3.0, 2)
    assert (request.height, request.width) == (64, 32)
    assert [plan.images_of(row) for row in (first, second)] == [range(2), range(3)]


def test_a_row_file_with_another_digest_is_refused() -> None:
    with pytest.raises(PlanDamaged, match="00000"):
        list(_plan().read_rows(SHARD, ROWS[:-1]))


def test_a_row_that_cannot_be_parsed_means_a_damaged_plan() -> None:
    data = b'{"prompt":"a","row":0,"seed":1,"extra":{"m":' + b"[" * 300 + b"]" * 300 + b"}}\n"
    shard = SHARD.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
    with pytest.raises(PlanDamaged, match="cannot be read"):
        list(_plan().read_rows(shard, data))


def test_no_two_rows_of_a_run_derive_the_same_seed() -> None:
    seeds = {derive_seed(7, row) for row in range(100_000)}
    assert len(seeds) == 100_000
    assert derive_seed(7, 0) != derive_seed(8, 0)
    assert ShardRow(row=0, prompt="a", seed=derive_seed(0, 0)).seed == 0
