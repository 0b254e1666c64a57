"""Rows that start from images: what becomes of their columns, and which files are uploaded."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.bulk.plan_builder import DatasetSpec
from imagefleet.producer.bulk.planner import plan_dataset, read_plan
from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.producer.bulk.row_images import UploadedRowImages
from imagefleet.producer.bulk.row_validation import RowDefaults
from imagefleet.shared.bulk.file_layout import REJECTED
from imagefleet.shared.bulk.plan import BulkFormat, Plan, RowParameters
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest, StorageDenied
from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION_XL
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.storage import StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.row_conversion import encode_samples, is_sample_of, row_work
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.plans import plan_rows, planned_rows

Rows = Path | Sequence[dict[str, Any]]


class CountingStore(MemoryStore):
    """A store that counts its puts."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[str] = []

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        self.puts.append(key)
        return super().put(key, data, content_type)


class FullStore(MemoryStore):
    """A store that takes nothing."""

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        raise StorageDenied(f"cannot store {key}: the disk is full")


def _png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "PNG")
    return buffer.getvalue()


def _key(data: bytes) -> str:
    return f"inputs/{hashlib.sha256(data).hexdigest()}.png"


def _plan(
    rows: Rows,
    destination: MemoryStore,
    fleet: MemoryStore | None = None,
    *,
    read_files: bool = True,
    parameters: RowParameters | None = None,
    **changes: Any,
) -> Plan:
    defaults = RowDefaults(
        parameters=parameters or RowParameters(),
        size=(None, None),
        model=None,
        seed=0,
        shard_size=10,
        columns=changes.pop("columns", {}),
        ignored_columns=changes.pop("ignored_columns", frozenset()),
    )
    spec = DatasetSpec(
        defaults=defaults, format=BulkFormat.FILES, image_format=ImageFormat.PNG, **changes
    )
    store = fleet or MemoryStore()
    with UploadedRowImages(lambda: store, read_files=read_files) as images:
        return plan_dataset(find_sources(rows), spec, destination, {}, images)[0]


def _reasons(store: MemoryStore) -> dict[Any, str]:
    return {row["row"]: f"{row['field']}: {row['reason']}" for row in read_rejected(store)}


def test_columns_of_images_set_the_parameters_of_their_row() -> None:
    store = MemoryStore()
    url = "https://example.org/a.png"
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "image": url, "mask_image": "jobs/x/0.png", "strength": "0.25"},
        {"prompt": "b", "image": "", "strength": None},
    ]
    plan = _plan(rows, store)
    first, second = planned_rows(store, plan)
    request = plan.request(plan.shards[0], first)
    assert (request.image, request.mask_image, request.strength) == (url, "jobs/x/0.png", 0.25)
    assert plan.request(plan.shards[0], second).image is None
    assert plan.input_images == 1


def test_only_a_plan_with_images_has_messages_that_release_0_1_0_refuses() -> None:
    for image, version in (("https://example.org/a.png", 2), (None, 1)):
        plan = _plan([{"prompt": "a", "image": image}], MemoryStore())
        assert {each.version for each in shards_to_send(plan, plan.shards)} == {version}
        assert (b"input_images" in plan.dump()) is (version == 2)


def test_files_are_uploaded_once_for_each_content(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("one.png", "same.png"):
        (tmp_path / "in" / name).write_bytes(_png())
    (tmp_path / "in" / "blue.png").write_bytes(_png("blue"))
    table = tmp_path / "rows.csv"
    table.write_text(
        "prompt,image,mask_image\n"
        "a,./in/one.png,\n"
        f"b,{tmp_path}/in/same.png,\n"
        "c,./in/one.png,./in/blue.png\n"
    )
    store, fleet = MemoryStore(), CountingStore()
    plan = _plan(table, store, fleet)
    assert sorted(fleet.puts) == sorted([_key(_png()), _key(_png("blue"))])
    assert fleet.get(_key(_png())) == _png()
    rows = planned_rows(store, plan)
    assert [row.image for row in rows] == [_key(_png())] * 3
    assert rows[2].mask_image == _key(_png("blue"))
    assert _plan(table, store, fleet).is_same_dataset(plan)
    assert len(fleet.puts) == 2


def test_images_of_hugging_face_rows_are_uploaded() -> None:
    store, fleet = MemoryStore(), CountingStore()
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "image": {"bytes": _png(), "path": None}},
        {"prompt": "b", "image": Image.open(io.BytesIO(_png("blue")))},
        {"prompt": "c", "image": _png()},
    ]
    plan = _plan(rows, store, fleet, read_files=False)
    keys = [row.image for row in planned_rows(store, plan)]
    assert keys[0] == keys[2] == _key(_png())
    assert len(fleet.puts) == 2


def test_a_bad_image_costs_its_row_only(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "large.png").write_bytes(_png() + bytes(20_000_000))
    (tmp_path / "here.png").write_bytes(_png())
    table = tmp_path / "rows.csv"
    images = ["./nowhere.png", "./text.png", "./large.png", "here.png", "two words", "./here.png"]
    table.write_text("prompt,image\n" + "".join(f"a,{image}\n" for image in images))
    store = MemoryStore()
    plan = _plan(table, store)
    assert [row.row for row in planned_rows(store, plan)] == [5]
    reasons = _reasons(store)
    assert reasons[0] == "image: No such file or directory"
    assert reasons[1] == "image: must be a PNG, JPEG or WebP file"
    assert reasons[2] == "image: must be at most 20,000,000 bytes"
    assert reasons[3].endswith("write ./here.png to upload it")
    assert reasons[4].startswith("image: must be an http(s) address")


def test_a_text_names_no_file_unless_the_caller_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_png())
    store, fleet = MemoryStore(), CountingStore()
    rows = [{"prompt": "a", "image": f"{tmp_path}/a.png"}, {"prompt": "b"}]
    plan = _plan(rows, store, fleet, read_files=False)
    assert (plan.rows, fleet.puts) == (1, [])
    assert _reasons(store)[0].startswith("image: must be an http(s) address")


def test_strength_without_an_image_is_rejected_and_not_ignored() -> None:
    store = MemoryStore()
    rows: list[dict[str, Any]] = [{"prompt": "a", "strength": 0.5}, {"prompt": "b"}]
    assert _plan(rows, store).rows == 1
    assert _reasons(store) == {0: "strength: needs an image"}
    store = MemoryStore()
    rows = [{"prompt": "a", "image": "https://example.org/a.png"}, {"prompt": "b"}]
    plan = _plan(rows, store, parameters=RowParameters(strength=0.5))
    assert plan.request(plan.shards[0], planned_rows(store, plan)[0]).strength == 0.5
    assert _reasons(store) == {1: "strength: needs an image"}


def test_an_image_of_the_run_holds_for_rows_without_one() -> None:
    store, url = MemoryStore(), "https://example.org/run.png"
    rows = [{"prompt": "a"}, {"prompt": "b", "image": "https://example.org/row.png"}]
    plan = _plan(rows, store, parameters=RowParameters(image=url))
    found = [plan.request(plan.shards[0], row).image for row in planned_rows(store, plan)]
    assert found == [url, "https://example.org/row.png"]
    assert plan.input_images == 2


def test_another_file_under_the_same_name_is_another_plan(tmp_path: Path) -> None:
    table, image = tmp_path / "rows.csv", tmp_path / "a.png"
    table.write_text("prompt,image\na,./a.png\n")
    image.write_bytes(_png())
    first = _plan(table, MemoryStore())
    image.write_bytes(_png("blue"))
    assert not _plan(table, MemoryStore()).is_same_dataset(first)


def test_a_store_that_refuses_an_image_leaves_no_plan(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_png())
    store = MemoryStore()
    with pytest.raises(StorageDenied, match="the disk is full"):
        _plan([{"prompt": "a", "image": tmp_path / "a.png"}], store, FullStore())
    assert read_plan(store) is None


def test_an_ignored_column_is_neither_used_nor_copied() -> None:
    store = MemoryStore()
    rows = [{"prompt": "a", "image": b"not read", "tenant": "gold", "n": 1}]
    plan = _plan(rows, store, ignored_columns=frozenset({"image", "tenant"}))
    [row] = planned_rows(store, plan)
    assert (row.image, row.extra, plan.input_images) == (None, {"n": 1}, 0)


SECRET = "s3cret" + "x" * 500


@pytest.mark.parametrize(
    "image",
    [
        "https://user:s3cret@example.org/a.png",
        f"https://user:{SECRET}@example.org/a.png",
        f"https://example.org/a b?X-Amz-Signature={SECRET}",
    ],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "txt"])
def test_rejected_rows_show_no_credentials(tmp_path: Path, image: str, ending: str) -> None:
    table, store = tmp_path / f"rows.{ending}", MemoryStore()
    lines = {
        "csv": f"prompt,image\na,{image}\nb,\n",
        "jsonl": f'{{"prompt": "a", "image": "{image}"}}\n"{image}\n["{image}"]\n"b"\n',
        "txt": f"{image} {'x' * 4_000}\nb\n",
    }
    table.write_text(lines[ending])
    assert _plan(table, store).rows == 1
    rejected = store.get(REJECTED).decode()
    assert "example.org" in rejected or "https://***@" in rejected
    assert "s3cret" not in rejected


def test_one_text_is_no_list_of_ignored_columns() -> None:
    with pytest.raises(InvalidRequest, match=r"^ignore_columns='source': must be a list of names"):
        plan_rows([{"prompt": "a", "source": "me"}], MemoryStore(), ignore_columns="source")


def test_a_column_similar_to_image_stops_the_planning() -> None:
    with pytest.raises(InvalidRequest, match=r"looks like 'image'.*--ignore-column images"):
        _plan([{"prompt": "a", "images": "https://example.org/a.png"}], MemoryStore())


@pytest.mark.parametrize(
    ("made_with", "named", "is_kept"),
    [(0.8, None, True), (0.3, None, True), (0.5, None, False), (0.8, 0.3, False), (0.8, 0.8, True)],
)
def test_samples_of_the_former_default_strength_stay_those_of_their_row(
    made_with: float, named: float | None, *, is_kept: bool
) -> None:
    """Before 0.2.0 the default was 0.8 for SDXL, too."""
    store, engine = MemoryStore(), FakeEngine()
    use = replace(engine.info.image_use, default_strengths=STABLE_DIFFUSION_XL)
    engine.info = replace(engine.info, image_use=use)
    offers = {DEFAULT_MODEL: (offer := offer_of(engine.info)), offer.model: offer}
    plan = plan_rows([{"prompt": "a", "image": "https://example.org/a"}], store, offers)
    [row] = planned_rows(store, plan)
    request = plan.request(plan.shards[0], row)
    made = request.model_copy(update={"strength": made_with})
    work = row_work(row.row, made, engine.info, offers)
    images = list(engine.start_batch(work.specs, work.shape).images())
    [sample] = encode_samples(work, row, made, images, engine)
    assert sample.document["strength"] == made_with
    asked = request.model_copy(update={"strength": named})
    assert is_sample_of(sample, work, asked, engine.info) is is_kept
