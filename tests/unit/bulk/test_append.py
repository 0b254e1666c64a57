"""Rows are appended to a plan in shards of their own; changed rows are refused by the first one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.bulk.planner import plan_dataset, read_plan
from imagefleet.producer.bulk.row_images import UploadedRowImages
from imagefleet.shared.bulk.file_layout import CARD, PLAN, RUN_STATS, plan_key
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import PlanConflict, PlanDamaged, StorageUnavailable
from imagefleet.shared.storage import StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from tests.support.plans import planned_rows

Row = str | dict[str, Any]
FIRST: list[Row] = ["a", "b", {"prompt": "c", "height": 8, "width": 8}, "d", "e"]
MORE: list[Row] = ["f", {"prompt": "g", "height": 8, "width": 8}, "h", "i"]


def _plan(
    rows: Sequence[Row], store: MemoryStore, *, append: bool = False, **options: Any
) -> tuple[Plan, list[Plan]]:
    """Return the plan, and the plans that were replaced."""
    replaced: list[Plan] = []
    with UploadedRowImages(lambda: store, read_files=False) as images:
        spec = parse_spec(images, **{"shard_size": 3, **options})
        callback = replaced.append if append else None
        plan, _ = plan_dataset(find_sources(rows), spec, store, {}, images, before_append=callback)
    return plan, replaced


def _prompts_of_shards(store: MemoryStore, plan: Plan) -> list[list[str]]:
    return [
        [row.prompt for row in plan.read_rows(shard, store.get(plan_key(shard.name)))]
        for shard in plan.shards
    ]


def test_appended_rows_make_shards_beside_those_that_are_there() -> None:
    store = MemoryStore()
    first, _ = _plan(FIRST, store)
    assert _prompts_of_shards(store, first) == [["a", "b", "d"], ["e"], ["c"]]
    store.put(RUN_STATS, b"{}", "application/json")
    store.put(CARD, b"", "text/markdown")
    grown, replaced = _plan([*FIRST, *MORE], store, append=True)
    assert replaced == [first]
    assert grown.shards[:3] == first.shards
    assert _prompts_of_shards(store, grown)[3:] == [["f", "h", "i"], ["g"]]
    assert (grown.appended, grown.rows, grown.samples) == ((5,), 9, 9)
    assert read_plan(store) == grown
    assert not store.exists(RUN_STATS)
    assert not store.exists(CARD)


def test_rows_are_the_same_as_if_they_had_been_there_from_the_beginning() -> None:
    store, other = MemoryStore(), MemoryStore()
    _plan(FIRST, store)
    grown, _ = _plan([*FIRST, *MORE], store, append=True)
    at_once, _ = _plan([*FIRST, *MORE], other)
    rows, expected = planned_rows(store, grown), planned_rows(other, at_once)
    assert sorted(rows, key=lambda row: row.row) == sorted(expected, key=lambda row: row.row)


@pytest.mark.parametrize("append", [False, True])
def test_the_same_rows_again_are_the_same_plan_after_each_growth(append: bool) -> None:
    store = MemoryStore()
    rows: list[Row] = list(FIRST)
    _plan(rows, store)
    for more in (MORE, ["j"], ["k", "l"]):
        rows += more
        grown, _ = _plan(rows, store, append=True)
        again, replaced = _plan(rows, store, append=append)
        assert again == grown
        assert replaced == []
    assert grown.appended == (5, 9, 10)
    assert _prompts_of_shards(store, grown)[5:] == [["j"], ["k", "l"]]


def test_the_first_append_without_a_plan_is_a_plan() -> None:
    store = MemoryStore()
    plan, replaced = _plan(FIRST, store, append=True)
    assert (plan.appended, replaced) == ((), [])
    assert plan.is_same_dataset(_plan(FIRST, MemoryStore())[0])


def test_rejected_and_blank_rows_at_the_end_keep_their_numbers() -> None:
    store = MemoryStore()
    _plan(["a", "", "b", ""], store)
    grown, _ = _plan(["a", "", "b", "", "c"], store, append=True)
    assert [(row.row, row.prompt) for row in planned_rows(store, grown)] == [
        (0, "a"),
        (2, "b"),
        (4, "c"),
    ]
    assert grown.rejected == 2


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("more", [[], MORE])
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["a", "B", *FIRST[2:]], "row 1 is 'B' now, and was planned as 'b'"),
        (["b", "a", *FIRST[2:]], "row 0 is 'b' now, and was planned as 'a'"),
        (["a", "b", "new", *FIRST[2:]], "row 2 is 'new' now, and was not planned"),
        (["a", "", *FIRST[2:]], "row 1 was planned as 'b', and is not there now"),
        ([*FIRST[:4], {"prompt": "e", "seed": 7}], "row 4, 'e', has another seed now"),
        ([*FIRST[:2], {**FIRST[2], "guidance_scale": 2}, *FIRST[3:]], "another guidance_scale"),  # type: ignore[dict-item]
    ],
)
def test_the_first_row_that_differs_is_named_and_nothing_changes(
    rows: list[Row], more: list[Row], sentence: str, append: bool
) -> None:
    store = MemoryStore()
    plan, _ = _plan(FIRST, store)
    before = {key: store.get(key) for key in store.list()}
    with pytest.raises(PlanConflict) as refused:
        _plan([*rows, *more], store, append=append)
    assert sentence in str(refused.value)
    assert {key: store.get(key) for key in before} == before
    assert read_plan(store) == plan


def test_a_shorter_input_is_refused_with_the_first_row_that_is_missing() -> None:
    store = MemoryStore()
    _plan(FIRST, store)
    with pytest.raises(PlanConflict, match="row 1 was planned as 'b', and is not there now"):
        _plan(["a"], store, append=True)


def test_without_the_option_more_rows_are_refused_and_the_option_is_named() -> None:
    store = MemoryStore()
    _plan(FIRST, store)
    for more in (MORE, ["f"], [{"prompt": "f", "height": 16, "width": 8}]):
        with pytest.raises(PlanConflict, match="the planned rows are the same, and --append"):
            _plan([*FIRST, *more], store)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": 1}, "seed"),
        ({"shard_size": 4}, "shard_size"),
        ({"format": "parquet"}, "format"),
        ({"guidance_scale": 2.0}, "parameters"),
        ({"dedupe": True}, "dedupe"),
    ],
)
def test_rows_with_other_options_are_not_appended(options: dict[str, Any], field: str) -> None:
    store = MemoryStore()
    _plan(FIRST, store)
    keys = list(store.list())
    with pytest.raises(PlanConflict, match=f"another plan: {field} differ"):
        _plan([*FIRST, *MORE], store, append=True, **options)
    assert list(store.list()) == keys


def test_a_missing_row_file_is_written_again_before_rows_are_appended() -> None:
    store = MemoryStore()
    _plan(FIRST, store)
    store.delete(plan_key("00000"))
    grown, _ = _plan([*FIRST, *MORE], store, append=True)
    assert _prompts_of_shards(store, grown)[0] == ["a", "b", "d"]
    store.delete(plan_key(grown.shards[-1].name))
    with pytest.raises(PlanDamaged, match="writes it again without --append"):
        _plan([*FIRST, *MORE, "x"], store, append=True)


class _FullDisk(MemoryStore):
    """A store that does not take a second plan as long as it is full."""

    is_full = False

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        if self.is_full and key == PLAN:
            raise StorageUnavailable("the disk is full")
        return super().put(key, data, content_type)


def test_an_append_that_was_interrupted_leaves_the_smaller_dataset_and_can_be_repeated() -> None:
    store = _FullDisk()
    first, _ = _plan(FIRST, store)
    store.is_full = True
    with pytest.raises(StorageUnavailable):
        _plan([*FIRST, *MORE], store, append=True)
    assert _plan(FIRST, store)[0] == first
    store.is_full = False
    grown, replaced = _plan([*FIRST, *MORE], store, append=True)
    assert replaced == [first]
    assert _prompts_of_shards(store, grown)[3:] == [["f", "h", "i"], ["g"]]


def test_a_plan_that_another_command_changes_meanwhile_is_not_replaced() -> None:
    store = MemoryStore()
    _plan(FIRST, store)

    def rows() -> Iterator[Row]:
        yield from FIRST
        _plan([*FIRST, "other"], store, append=True)
        yield from MORE

    with pytest.raises(PlanConflict, match="another command has changed the plan meanwhile"):
        _plan(rows(), store, append=True)  # type: ignore[arg-type]
    stored = read_plan(store)
    assert stored is not None
    assert (stored.rows, stored.appended) == (6, (5,))


def test_duplicates_of_planned_rows_are_not_appended() -> None:
    store = MemoryStore()
    _plan(["a", "b"], store, dedupe=True)
    grown, _ = _plan(["a", "b", "a", "c"], store, dedupe=True, append=True)
    assert [row.prompt for row in planned_rows(store, grown)] == ["a", "b", "c"]
    assert grown.duplicates == 1


def test_workers_of_release_0_1_0_refuse_only_plans_with_appended_rows() -> None:
    store = MemoryStore()
    first, _ = _plan(["a"], store)
    assert b"appended" not in first.dump()
    assert {each.version for each in shards_to_send(first, first.shards)} == {1}
    grown, _ = _plan(["a", "b"], store, append=True)
    assert {each.version for each in shards_to_send(grown, grown.shards)} == {2}
