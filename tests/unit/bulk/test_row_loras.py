"""Rows with LoRA: what a table may say, what the plan records, and which samples are used again."""

import json
from pathlib import Path
from typing import Any

import pytest

from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.bulk.file_layout import plan_key
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.bulk.stats import RunStats, ShardStats
from imagefleet.shared.bulk.summary import render_card
from imagefleet.shared.errors import InvalidRequest, PlanConflict
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.row_conversion import encode_samples, is_sample_of, row_work
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.plans import Rows, plan_rows, planned_requests, planned_rows


def _engine(*names: str, folder: str = "/loras") -> FakeEngine:
    return FakeEngine(job_loras=[LoraOption(name=each, path=f"{folder}/{each}") for each in names])


def _offers(*names: str, folder: str = "/loras") -> dict[str, Offer]:
    return {"default": offer_of(_engine(*names, folder=folder).info)}


def _loras(store: ObjectStore, plan: Plan) -> list[tuple[tuple[str, float], ...]]:
    return [request.loras for request in planned_requests(store, plan)]


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_row_of_a_file_names_its_loras_or_has_those_of_the_run(name: str, tmp_path: Path) -> None:
    store, table = MemoryStore(), tmp_path / name
    if name == "rows.csv":
        table.write_text('prompt,loras\na,"style:0.8,detail"\nb,\nc,style:-1\n')
    else:
        mixtures: list[Any] = [[["style", 0.8], ["detail", 1]], None, "style:-1"]
        lines = [json.dumps({"prompt": "a", "loras": each}) for each in mixtures]
        table.write_text("\n".join(lines))
    plan = plan_rows(table, store, _offers("style", "detail"), loras="detail:0.5")
    assert _loras(store, plan) == [
        (("detail", 1.0), ("style", 0.8)),
        (("detail", 0.5),),
        (("style", -1.0),),
    ]
    assert plan.loras == _offers("style", "detail")["default"].loras


def test_an_empty_list_is_a_row_without_the_loras_of_the_run() -> None:
    store = MemoryStore()
    rows: Rows = ["a", {"prompt": "a", "loras": []}]
    plan = plan_rows(rows, store, loras=[("style", 1)])
    assert _loras(store, plan) == [(("style", 1.0),), ()]
    assert plan.loras == {"style": None}  # no worker has announced a digest


def test_wrong_loras_reject_their_row_with_the_sentence_of_jobs() -> None:
    store = MemoryStore()
    wrong = ["styl", "style:99", [["style"]], [["style", 1], ["style", 2]]]
    rows: Rows = ["a", *({"prompt": "a", "loras": each} for each in wrong)]
    plan = plan_rows(rows, store, _offers("style"))
    reasons = [f"{row['field']}: {row['reason']}" for row in read_rejected(store)]
    assert plan.rows == 1
    assert reasons[0] == (
        "loras: is no LoRA that the workers of the model fake hold; they hold style"
    )
    assert reasons[1:] == [
        "loras: the scale '99' of 'style' must be a number from -10 to 10, as in 'style:0.8'",
        "loras: must be pairs of a name and a scale, as in [('style', 0.8)], or a text like "
        "'style:0.8,other'",
        "loras: names 'style' twice; give each LoRA one scale",
    ]


@pytest.mark.parametrize("loras", ["styl", "style:99", 3])
def test_wrong_loras_of_all_rows_are_refused_at_once(loras: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plan_rows(["a"], MemoryStore(), _offers("style"), loras=loras)
    assert refused.value.field == "loras"


@pytest.mark.parametrize(
    ("row", "run", "version"),
    [
        ("style", None, 2),
        (None, "style", 2),
        ([], "style", 2),
        (None, None, 1),
        ([], None, 1),
        (None, "", 1),
        ([], "", 1),
    ],
)
def test_only_a_plan_with_loras_has_messages_that_release_0_1_0_refuses(
    row: Any, run: str | None, version: int
) -> None:
    store = MemoryStore()
    plan = plan_rows([{"prompt": "a", "loras": row}], store, loras=run)
    assert {each.version for each in shards_to_send(plan, plan.shards)} == {version}
    files = plan.dump() + store.get(plan_key("00000"))
    assert (b"loras" in files) is (version == 2)


def test_rows_that_differ_in_their_loras_are_no_duplicates() -> None:
    mixtures = ["style", "style:1", [("style", 1.0)], "style:0.5", None]
    rows = [{"prompt": "a", "loras": each} for each in mixtures]
    plan = plan_rows(rows, MemoryStore(), dedupe=True)
    assert (plan.rows, plan.duplicates) == (3, 2)


def test_a_plan_is_continued_with_the_same_lora_files_only() -> None:
    store, rows = MemoryStore(), [{"prompt": "a", "loras": "style"}]
    plan = plan_rows(rows, store, _offers("style"))
    assert plan_rows(rows, store, _offers("style", "detail")) == plan
    assert plan_rows(rows, store) == plan  # no worker is alive
    with pytest.raises(PlanConflict, match=r"planned for LoRA style=sha256:\w+, but the fleet has"):
        plan_rows(rows, store, _offers("style", folder="/others"))


def test_a_sample_of_another_lora_file_or_scale_is_generated_again() -> None:
    store, engine = MemoryStore(), _engine("style", "detail")
    rows = [{"prompt": "a", "loras": "style:0.8", "seed": 1}]
    plan = plan_rows(rows, store, _offers("style", "detail"))
    [row] = planned_rows(store, plan)
    request = plan.request(plan.shards[0], row)
    offers = _offers("style", "detail")
    work = row_work(row.row, request, engine.info, offers)
    images = engine.start_batch(work.specs, work.shape).images()
    [sample] = encode_samples(work, row, request, list(images), engine)
    digest = offers["default"].loras["style"]
    assert sample.document["job_loras"] == [{"name": "style", "digest": digest, "scale": 0.8}]
    assert is_sample_of(sample, work, request, engine.info)
    others = _engine("style", "detail", folder="/others")
    assert not is_sample_of(sample, work, request, others.info)
    for loras in ((), (("style", 0.7),), (("detail", 0.8),)):
        other = request.model_copy(update={"loras": loras})
        other_work = row_work(row.row, other, engine.info, offers)
        assert not is_sample_of(sample, other_work, other, engine.info)


def test_the_card_of_the_dataset_names_the_loras() -> None:
    rows = [{"prompt": "a", "loras": "style:0.8"}]
    plan = plan_rows(rows, MemoryStore(), _offers("style", "detail"), loras="detail:0.5")
    made = ShardStats(
        shard="00000", plan_sha256="", model="fake", model_digest="", samples=1, files=()
    )
    card = render_card(plan, RunStats.of(plan, [made]))
    assert "| `loras` | detail:0.5 |" in card
    assert f"| LoRA `style` | `{plan.loras['style']}` |" in card
