"""Planning of rows, and what it leaves behind when it fails."""

import json
import shlex
from array import array
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from imagefleet.producer.bulk.column_names import check_parameters
from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import Rows, find_sources
from imagefleet.producer.bulk.plan_builder import DatasetSpec
from imagefleet.producer.bulk.planner import plan_dataset, read_plan
from imagefleet.producer.bulk.rejected import describe_rejected, read_rejected
from imagefleet.producer.bulk.row_images import UploadedRowImages
from imagefleet.producer.bulk.row_validation import RowDefaults
from imagefleet.shared.bulk.file_layout import RUN_STATS, plan_key
from imagefleet.shared.bulk.plan import (
    BulkFormat,
    Plan,
    RowParameters,
    ShardRow,
    derive_seed,
    run_id,
)
from imagefleet.shared.bulk.stats import RunStats, ShardStats
from imagefleet.shared.errors import InvalidRequest, PlanConflict, StorageDenied
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.storage import ObjectStore, StoredObject, open_store, place_of
from imagefleet.shared.storage.memory import MemoryStore

OFFER = Offer(
    model="shapes",
    digest="sha256:1",
    shapes=((64, 64), (64, 96)),
    schedulers=("ddim",),
    max_num_inference_steps=50,
    num_inference_steps=20,
    guidance_scale=3.0,
    scheduler="ddim",
)


def _spec(*, dedupe: bool = False, **changes: Any) -> DatasetSpec:
    defaults: dict[str, Any] = {
        "parameters": RowParameters(),
        "size": (None, None),
        "model": None,
        "seed": 0,
        "shard_size": 3,
        "columns": {},
        **changes,
    }
    return DatasetSpec(
        defaults=RowDefaults(**defaults),
        format=BulkFormat.WEBDATASET,
        image_format=ImageFormat.PNG,
        dedupe=dedupe,
    )


def _plan(
    rows: Rows, store: ObjectStore, offers: dict[str, Offer] | None = None, **changes: Any
) -> Plan:
    return _plan_or_find(rows, store, offers or {}, **changes)[0]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_with_too_many_columns_is_refused(tmp_path: Path, kind: str) -> None:
    names, path = ["prompt", *(f"c{number}" for number in range(100_000))], tmp_path / f"a.{kind}"
    if kind == "csv":
        path.write_text(",".join(names) + "\na\n")
    else:
        names = names[:2_000]
        parquet.write_table(pyarrow.table({name: ["a"] for name in names}), path)
    sentence = f"has {len(names):,} columns; leave some out: at most 1,000 are read"
    with pytest.raises(InvalidRequest, match=sentence):
        _plan(path, MemoryStore())


def test_rows_with_too_many_different_columns_are_rejected() -> None:
    store = MemoryStore()
    many = {"prompt": "b", **{f"c{number}": 1 for number in range(100_000)}}
    plan = _plan([{"prompt": "a"}, many, {"prompt": "c"}], store)
    assert plan.samples == 2
    [row] = read_rejected(store)
    assert row["reason"] == "is one column too many; all rows together copy at most 1,000"


def _plan_or_find(
    rows: Rows, store: ObjectStore, offers: dict[str, Offer], **changes: Any
) -> tuple[Plan, bool]:
    with UploadedRowImages(lambda: store, read_files=True) as images:
        return plan_dataset(find_sources(rows), _spec(**changes), store, offers, images)


def _rows(store: ObjectStore, made: Plan) -> list[list[ShardRow]]:
    return [list(made.read_rows(s, store.get(plan_key(s.name)))) for s in made.shards]


def test_whole_numbers_of_a_column_with_gaps_are_taken_as_pandas_writes_them(
    tmp_path: Path,
) -> None:
    seeds, images = [7, None, 2**32 - 1], [2, 1, None]
    frame = pandas.DataFrame({"prompt": "a", "seed": seeds, "num_images_per_prompt": images})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet")
    assert "7.0" in (tmp_path / "a.csv").read_text()
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        store = MemoryStore()
        made = _plan(tmp_path / name, store, shard_size=9)
        [rows] = _rows(store, made)
        assert [rows[0].seed, rows[2].seed] == [7, 2**32 - 1]
        assert [row.num_images_per_prompt for row in rows] == images


@pytest.mark.parametrize("seed", ["1.5", "1e999", "1_0", "-1.0", "1e300", "0x1", "nan", "9" * 5000])
def test_other_numbers_are_no_seeds(tmp_path: Path, seed: str) -> None:
    (tmp_path / "a.csv").write_text(f"prompt,seed\na,1\nb,{seed}\n")
    made = _plan(tmp_path / "a.csv", MemoryStore())
    assert (made.rows, made.rejected) == (1, 1)


def test_numpy_numbers_are_numbers() -> None:
    store = MemoryStore()
    rows: list[Any] = [
        {"prompt": np.str_("a"), "seed": np.uint8(7), "guidance_scale": np.float32(2.5)},
        {"prompt": "b", "seed": np.float32(8), "prompt_weighting": np.bool_(False)},
        {"prompt": "c", "seed": np.float32("nan"), "num_images_per_prompt": np.array(2)},
        {"prompt": "d", "seed": np.float32(1.5)},
    ]
    made = _plan(rows, store, shard_size=9)
    [found] = _rows(store, made)
    assert [row.seed for row in found] == [7, 8, derive_seed(0, 2)]
    assert (found[0].guidance_scale, found[2].num_images_per_prompt) == (2.5, 2)
    assert made.rejected == 1
    with UploadedRowImages(lambda: store, read_files=True) as images:
        given: Any = {"seed": np.int64(3), "shard_size": np.int32(2), "height": np.int64(64)}
        spec = parse_spec(images, width=64, num_inference_steps=np.int64(4), **given)
    assert (spec.defaults.seed, spec.defaults.shard_size, spec.defaults.size) == (3, 2, (64, 64))
    assert spec.defaults.parameters.num_inference_steps == 4


def test_a_column_without_a_name_stops_the_planning_with_what_to_do(tmp_path: Path) -> None:
    pandas.DataFrame({"prompt": ["a", "b"]}).to_csv(tmp_path / "a.csv")
    with pytest.raises(InvalidRequest, match="--ignore-column ''"):
        _plan(tmp_path / "a.csv", MemoryStore())
    made = _plan(tmp_path / "a.csv", MemoryStore(), ignored_columns=frozenset({""}))
    assert (made.rows, made.rejected) == (2, 0)


def test_suggested_options_are_quoted_for_a_shell() -> None:
    with pytest.raises(InvalidRequest) as refused:
        _plan([{"prompt": "a", "negative prompt": "b"}], MemoryStore())
    words = shlex.split(str(refused.value).replace("(", " ").replace(")", " ").replace(";", " "))
    assert words[words.index("--column") + 1] == "negative_prompt=negative prompt"
    assert words[words.index("--ignore-column") + 1] == "negative prompt"


def test_shards_hold_whole_rows_up_to_their_size() -> None:
    store = MemoryStore()
    rows = [{"prompt": "a", "num_images_per_prompt": n} for n in (2, 2, 1, 3, 1)]
    made = _plan(rows, store)
    assert [shard.samples for shard in made.shards] == [2, 3, 3, 1]
    assert [[row.row for row in shard] for shard in _rows(store, made)] == [[0], [1, 2], [3], [4]]
    assert (made.rows, made.samples) == (5, 9)


def test_a_shard_holds_images_of_one_size() -> None:
    store = MemoryStore()
    wide: dict[str, Any] = {"prompt": "w", "height": 64, "width": 96}
    made = _plan(["a", wide, "b", wide, "c"], store, {"default": OFFER})
    assert [(s.height, s.width, s.rows) for s in made.shards] == [(None, None, 3), (64, 96, 2)]


def test_the_same_rows_and_parameters_make_the_same_plan() -> None:
    first = _plan(["a", "b"], MemoryStore())
    assert _plan(iter(["a", "b"]), MemoryStore()).is_same_dataset(first)
    assert not _plan(["b", "a"], MemoryStore()).is_same_dataset(first)


def test_producers_that_plan_the_same_dataset_get_the_same_run_id() -> None:
    one = _plan(["a"], MemoryStore())
    other = _plan(iter(["a"]), MemoryStore(), {"default": OFFER})
    assert (one.model_digest, one.source) != (other.model_digest, other.source)
    assert run_id("s3://b/", one) == run_id("s3://b/", other)
    assert run_id("s3://b/", one) != run_id("s3://c/", one)
    there, also_there = (
        "s3://b/?endpoint_url=http://m:1",
        "s3://b?region=a&endpoint_url=http://m:1/",
    )
    elsewhere, of_aws = "s3://b/?endpoint_url=http://n:1", "s3://b/?region=a"
    places = [place_of(url, open_store(url)) for url in (there, also_there, elsewhere, of_aws)]
    assert places[0] == places[1]
    assert len({run_id(place, one) for place in places}) == 3
    assert places[3] == "s3://b/"
    assert run_id("s3://b/", one) != run_id("s3://b/", _plan(["b"], MemoryStore()))


def test_a_plain_prompt_is_planned_like_a_fully_validated_row() -> None:
    """Rows with only a prompt are not validated field by field."""
    prompts = ['a "quoted" \\ one', "Füße 🦶", "x" * 4_000]
    short, long = MemoryStore(), MemoryStore()
    by_prompt = _plan(prompts, short)
    by_row = _plan([{"prompt": each, "negative_prompt": None} for each in prompts], long)
    assert [s.sha256 for s in by_prompt.shards] == [s.sha256 for s in by_row.shards]
    assert [row.prompt for row in _rows(short, by_prompt)[0]] == prompts


def test_parameters_of_a_row_override_those_of_the_run() -> None:
    store = MemoryStore()
    given = RowParameters(guidance_scale=2.0, negative_prompt="people")
    row = {"caption": "a", "guidance_scale": "4", "seed": "9", "author": "me", "score": 0.5}
    rows: list[dict[str, Any]] = [row, {"caption": "b"}]
    made = _plan(rows, store, parameters=given, columns={"prompt": "caption"})
    [[first, second]] = _rows(store, made)
    request = made.request(made.shards[0], first)
    assert (request.guidance_scale, request.seed, request.negative_prompt) == (4.0, 9, "people")
    assert first.extra == {"author": "me", "score": 0.5}
    assert made.request(made.shards[0], second).guidance_scale == 2.0


def test_bad_rows_are_rejected_by_number_and_the_others_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(
        b'{"prompt": "good"}\n'
        b'{"prompt": ""}\n'
        b'{"prompt": "   "}\n'
        b'{"prompt": 7}\n'
        b'{"seed": 7}\n'
        b'{"prompt": "\xff\xfe"}\n'
        b'{"prompt": "a", "seed": -1}\n'
        b'{"prompt": "a", "height": 64}\n'
        b'{"prompt": "a", "num_images_per_prompt": 4}\n'
        b'{"prompt": "a", "model": "another"}\n'
        b'{"prompt": "a", "height": 8, "width": 8}\n'
        b'{"prompt": "a\\u0000b"}\n'
        b'{"prompt": "a", "note": "' + b"x" * 70_000 + b'"}\n'
        b"{\n" + json.dumps({"prompt": "x" * 4_001}).encode() + b"\n"
        b'{"prompt": "good too"}\n'
    )
    store = MemoryStore()
    made = _plan(path, store, {"default": OFFER})
    fields: dict[Any, Any] = {
        rejected["row"]: rejected["field"] for rejected in read_rejected(store)
    }
    assert made.rows == 2
    assert made.rejected == len(fields) == 14
    assert sorted(fields) == list(range(1, 15))
    assert (fields[5], fields[6], fields[8]) == ("prompt", "seed", "num_images_per_prompt")


def test_a_column_that_looks_like_a_mistyped_parameter_stops_the_planning() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match=r"looks like 'negative_prompt'"):
        _plan([{"prompt": "a", "negativ_prompt": "b"}], store)
    assert list(store.list()) == []


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("shard_size", {"shard_size": 0}),
        ("shard_size", {"parameters": RowParameters(num_images_per_prompt=4)}),
        ("height", {"size": (64, None)}),
        ("model", {"model": "another"}),
        ("seed", {"seed": -1}),
        ("column", {"columns": {"promt": "a"}}),
    ],
)
def test_a_wrong_parameter_for_all_rows_is_refused_at_once(
    field: str, changes: dict[str, Any]
) -> None:
    store = MemoryStore()
    with pytest.raises(InvalidRequest) as refused:
        _plan(["a"], store, {"default": OFFER}, **changes)
    assert refused.value.field == field
    assert read_plan(store) is None


def test_the_error_for_an_unknown_parameter_lists_all_that_rows_have() -> None:
    with pytest.raises(InvalidRequest, match=r"promt='a': no such parameter; .*") as refused:
        check_parameters({"promt": "a"})
    listed = refused.value.limit.partition("are ")[2].split(", ")
    assert {"negative_prompt", "seed", "height", "width", "model", "image"} <= set(listed)
    assert "prompt" not in listed  # each row has its own


@pytest.mark.parametrize(("shard_size", "images"), [(0, 1), (3, 4)])
def test_a_shard_size_that_is_too_small_is_refused_with_the_smallest(
    shard_size: int, images: int
) -> None:
    parameters = RowParameters(num_images_per_prompt=images)
    with pytest.raises(InvalidRequest, match=f"shard_size={shard_size}: must be at least {images}"):
        _plan(["a"], MemoryStore(), shard_size=shard_size, parameters=parameters)


def test_the_error_for_an_input_without_valid_rows_names_the_first_reason() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match=r"no row that can be generated; row 0: prompt=''"):
        _plan(["", ""], store)
    assert read_plan(store) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a\n\n \t\nb\n{bad}\n\n"),
        ("a.jsonl", '"a"\n\n \t\n"b"\n"{bad}"\n\n'),
        ("a.csv", "prompt\na\n\n \t\nb\n{bad}\n\n"),
    ],
)
def test_blank_lines_are_skipped_and_rows_keep_their_numbers(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text.format(bad="x" * 4_001))
    store = MemoryStore()
    made = _plan(tmp_path / name, store)
    assert (made.rows, made.rejected) == (2, 1)
    assert [(row.row, row.prompt) for row in _rows(store, made)[0]] == [(0, "a"), (3, "b")]
    assert [rejected["row"] for rejected in read_rejected(store)] == [4]


def test_a_number_with_too_many_digits_costs_its_row_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt,seed\na,1\nb,{'9' * 5_000}\n")
    assert _plan(path, MemoryStore()).rejected == 1


def test_a_quoted_blank_prompt_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt\na\n"  "\n  \nb\n')
    store = MemoryStore()
    assert _plan(tmp_path / "a.csv", store).rows == 2
    assert [(rejected["row"], rejected["field"]) for rejected in read_rejected(store)] == [
        (1, "prompt")
    ]


@pytest.mark.parametrize(
    ("name", "known"),
    [("a.TXT", "none"), ("a.csv", "prompt, seeds"), ("a.parquet", "prompt, seeds")],
)
def test_a_missing_column_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, known: str
) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table({"prompt": ["a"], "seeds": [1]}), path)
    else:
        path.write_text("prompt,seeds\na,1\n")
    store = MemoryStore()
    with pytest.raises(InvalidRequest) as refused:
        _plan(path, store, columns={"seed": "nope"})
    sentence = f"column='seed=nope': {name} has no such column; its columns: {known}"
    assert str(refused.value) == sentence
    assert list(store.list()) == []


def test_a_column_that_no_row_has_is_refused_after_the_last_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "n": 3}\n"c"\n')
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match="column='seed=nope': no row has such a column"):
        _plan(path, store, columns={"seed": "nope"})
    assert read_plan(store) is None
    [first, second, _] = _rows(store, _plan(path, store, columns={"seed": "n"}))[0]
    assert (first.seed, second.seed) == (derive_seed(0, 0), 3)


@pytest.mark.parametrize("row", [{"seed": 1}, {"prompt": None}, {"prompt": float("nan")}])
def test_a_missing_prompt_is_reported_without_a_value(row: dict[str, Any]) -> None:
    store = MemoryStore()
    rows: list[Any] = ["a", row]
    _plan(rows, store)
    [rejected] = read_rejected(store)
    assert (rejected["value"], describe_rejected(rejected)) == (None, "row 1: prompt is missing")


def test_dedupe_plans_equal_rows_once() -> None:
    store = MemoryStore()
    rows: list[Any] = ["a", "b", "a", {"prompt": "a"}, {"prompt": "a", "seed": 1}]
    made = _plan(rows, store, dedupe=True)
    assert [row.row for shard in _rows(store, made) for row in shard] == [0, 1, 4]
    assert made.duplicates == 2
    assert _plan(rows, MemoryStore()).rows == 5


def test_planning_again_changes_nothing_and_another_plan_is_refused() -> None:
    store = MemoryStore()
    first = _plan(["a", "b"], store)
    before = {key: store.get(key) for key in store.list()}
    again, existed = _plan_or_find(["a", "b"], store, {"default": OFFER})
    assert (again, existed) == (first, True)
    with pytest.raises(PlanConflict, match=r"shards differ"):
        _plan(["a", "c"], store)
    with pytest.raises(PlanConflict, match=r"seed, shards differ"):
        _plan(["a", "b"], store, seed=1)
    assert {key: store.get(key) for key in store.list()} == before


def test_a_missing_row_file_is_written_again_only_for_the_same_plan() -> None:
    store, rows = MemoryStore(), [f"prompt {n}" for n in range(9)]
    _plan(rows, store)
    whole = store.get(plan_key("00001"))
    store.delete(plan_key("00001"))
    with pytest.raises(PlanConflict):
        _plan(["other"] * 9, store)
    assert not store.exists(plan_key("00001"))
    _plan(rows, store)
    assert store.get(plan_key("00001")) == whole


def test_a_plan_is_not_continued_with_another_model() -> None:
    store = MemoryStore()
    _plan(["a"], store, {"default": OFFER})
    other = OFFER.model_copy(update={"digest": "sha256:2"})
    with pytest.raises(PlanConflict, match=r"sha256:2"):
        _plan(["a"], store, {"default": other})


class _FullAfter(MemoryStore):
    """A store that is full after some objects."""

    def __init__(self, objects: int) -> None:
        super().__init__()
        self._room = objects

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        if self._room == 0:
            raise StorageDenied(f"cannot store {key}: the disk is full")
        self._room -= 1
        return super().put(key, data, content_type)


@pytest.mark.parametrize("objects", [0, 1, 2, 40])
def test_a_full_disk_leaves_no_plan(objects: int) -> None:
    store = _FullAfter(objects)
    with pytest.raises(StorageDenied, match="full"):
        _plan((f"prompt {n}" for n in range(300)), store)
    assert read_plan(store) is None


@pytest.mark.parametrize(
    ("module", "file"), [("plan_writer", "00000.jsonl"), ("planner", "plan.json")]
)
def test_a_file_that_workers_would_not_read_is_refused(
    module: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"imagefleet.producer.bulk.{module}.MAX_TEXT_BYTES", 10)
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match=rf"plan/{file}.* must be at most 10 bytes"):
        _plan(["a"], store)
    assert read_plan(store) is None


@pytest.mark.parametrize("depth", [100, 250, 900])
def test_a_column_nested_deeper_than_workers_read_is_refused(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt":"a"}\n{"prompt":"b","m":' + "[" * depth + "]" * depth + "}\n")
    store = MemoryStore()
    made = _plan(path, store)
    assert (made.rows, made.rejected) == (1, 1)
    assert [row["field"] for row in read_rejected(store)] == ["m"]


@pytest.mark.parametrize(
    ("name", "data", "field"),
    [
        ("a.jsonl", b'{"prompt":"a"}\n\xff\xfe no JSON\n', "line"),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":"b","\\ud800":1}\n', "column"),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":"b","caf\xe9":1}\n', "column"),
        ("a.csv", b'prompt,n\na,1\n"b"c,2\n', "line"),
    ],
)
def test_a_row_that_cannot_be_read_is_rejected_and_the_others_are_planned(
    tmp_path: Path, name: str, data: bytes, field: str
) -> None:
    (tmp_path / name).write_bytes(data)
    store = MemoryStore()
    made = _plan(tmp_path / name, store)
    assert (made.rows, made.rejected) == (1, 1)
    assert [row["field"] for row in read_rejected(store)] == [field]


def test_objects_without_a_repeatable_text_are_rejected() -> None:
    """An image's text holds its memory address: the plan would differ each time."""
    day = date(2026, 2, 3)
    rows = [
        {
            "prompt": "a",
            "at": day,
            "scores": np.array([1.5, 2.0]),
            "n": np.int64(3),
            "a": array("i", [7]),
        },
        {"prompt": "b", "photo": Image.new("RGB", (8, 8))},
    ]
    store = MemoryStore()
    made = _plan(rows, store)
    [[row]] = _rows(store, made)
    assert row.extra == {"at": "2026-02-03", "scores": [1.5, 2.0], "n": 3, "a": [7]}
    [rejected] = read_rejected(store)
    assert (rejected["row"], rejected["field"], rejected["value"]) == (1, "photo", "Image")


@pytest.mark.parametrize("unit", ["ns", "s", "D"])
def test_numpy_times_are_copied_as_text_in_every_unit(unit: Literal["ns", "s", "D"]) -> None:
    """Times in nanoseconds, as in pandas, used to become plain integers."""
    day, while_ = np.datetime64("2026-02-03", unit), np.timedelta64(5, unit)
    store = MemoryStore()
    made = _plan(
        [{"prompt": "a", "at": day, "for": while_, "days": np.array([day]), "all": [[day]]}], store
    )
    [[row]] = _rows(store, made)
    assert row.extra == {
        "at": str(day),
        "for": str(while_),
        "days": [str(day)],
        "all": [[str(day)]],
    }
    assert str(day).startswith("2026-02-03")


def test_invalid_text_inside_a_column_is_copied_as_escapes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt":"a","m":{"\\ud800":"caf\xe9"}}\n')
    store = MemoryStore()
    [[row]] = _rows(store, _plan(tmp_path / "a.jsonl", store))
    assert row.extra == {"m": {"\\ud800": "caf\\udce9"}}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'prompt\na cat\n"a dog\na bird\na cow\n', "line 3 is never closed"),
        (b"prompt,prompt\na cat,a dog\n", "appears twice"),
        ("prompt,caf\u00e9\na,b\n".encode("latin-1"), "UTF-8 name"),
    ],
)
def test_a_malformed_csv_file_is_refused_as_a_whole(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(InvalidRequest, match=reason):
        _plan(tmp_path / "a.csv", MemoryStore())


def test_rows_with_equal_parameters_are_duplicates_however_they_are_written() -> None:
    rows: list[str | dict[str, Any]] = [
        "a cat",
        {"prompt": "a cat", "negative_prompt": None},
        {"prompt": "a cat", "num_inference_steps": 20, "id": 7},
        {"prompt": "a cat", "seed": 1, "id": 1},
        {"prompt": "a cat", "seed": 1, "id": 2},
        {"prompt": "a cat", "num_inference_steps": 21},
    ]
    common = RowParameters(num_inference_steps=20)
    made = _plan(rows, MemoryStore(), parameters=common, dedupe=True)
    assert (made.rows, made.duplicates) == (3, 3)


@pytest.mark.parametrize(
    "column", ["format", "tenant", "ttl", "preview", "callback_url", "Priority"]
)
def test_a_column_named_like_a_parameter_of_jobs_is_refused_by_name(column: str) -> None:
    with pytest.raises(InvalidRequest, match=f"column='{column}': is a parameter of jobs"):
        _plan([{"prompt": "a", column: "b"}], MemoryStore())


def test_a_table_without_the_column_of_prompts_is_refused_with_its_columns(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("caption,size\na,1\n")
    with pytest.raises(InvalidRequest, match="its columns: caption, size; name the one") as refused:
        _plan(table, MemoryStore())
    assert refused.value.value == "prompt"
    assert _plan(table, MemoryStore(), columns={"prompt": "caption"}).rows == 1


@pytest.mark.parametrize("good", [0, 50])
def test_a_refused_command_leaves_no_plan_and_before_a_full_shard_no_files(good: int) -> None:
    store = MemoryStore()
    rows = [*({"prompt": "a"} for _ in range(good)), {"prompt": "a", "negativ_prompt": "b"}]
    with pytest.raises(InvalidRequest, match="looks like"):
        _plan(rows, store)
    assert read_plan(store) is None
    assert bool(list(store.list())) is (good > 3)


def test_a_plan_that_another_command_wrote_meanwhile_is_kept() -> None:
    store = MemoryStore()

    def rows() -> Iterator[str]:
        yield "a"
        planned.append(_plan(["a", "of another command"], store))
        yield "b"

    planned: list[Plan] = []
    with pytest.raises(PlanConflict):
        _plan(rows(), store)
    assert [read_plan(store)] == planned


def test_a_finished_dataset_without_its_plan_is_not_taken_for_another_one() -> None:
    store = MemoryStore()
    plan = _plan(["a", "b"], store, parameters=RowParameters(guidance_scale=3.0))
    marker = ShardStats(
        shard="00000", plan_sha256="", model="m", model_digest="", samples=2, files=()
    )
    summary = RunStats.of(plan, [marker]).dump()
    for key in list(store.list()):
        store.delete(key)
    store.put(RUN_STATS, summary, "application/json")
    with pytest.raises(PlanConflict, match="holds a finished dataset of another plan"):
        _plan(["a", "b"], store, parameters=RowParameters(guidance_scale=5.0))
    assert read_plan(store) is None
    again = _plan(["a", "b"], store, parameters=RowParameters(guidance_scale=3.0))
    assert again.is_same_dataset(plan)
