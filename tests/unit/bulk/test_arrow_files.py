"""Arrow files, and datasets that `datasets` has saved, are read as their libraries read them."""

import datetime
import gzip
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow
import pytest
from PIL import Image
from pyarrow import feather, ipc

from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.memory import MemoryStore
from tests.support.plans import plan_rows, planned_rows

ROWS: list[dict[str, Any]] = [
    {"prompt": f"prompt {n}", "seed": n if n % 3 else None, "tags": ["a"] * (n % 2)}
    for n in range(2_500)
]
TABLE = pyarrow.Table.from_pylist(ROWS)


def _read(path: Path | str, input_format: str | None = None) -> list[Any]:
    found: list[Any] = []
    for source in find_sources(path, input_format):
        with source.open() as table:
            found += table.rows
    return found


def _stream(path: Path, compression: str | None = None) -> None:
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_stream(str(path), TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=700)


def _file(path: Path) -> None:
    with ipc.new_file(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=700)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.arrow", _file),
        ("b.arrow", _stream),
        ("c.arrow", lambda path: _stream(path, "zstd")),
        ("a.feather", lambda path: feather.write_feather(TABLE, str(path))),
        ("b.feather", lambda path: feather.write_feather(TABLE, str(path), "zstd", chunksize=900)),
        ("c.feather", lambda path: feather.write_feather(TABLE, str(path), "uncompressed")),
    ],
)
def test_arrow_files_are_read(tmp_path: Path, name: str, write: Callable[[Path], object]) -> None:
    write(tmp_path / name)
    assert _read(tmp_path / name) == ROWS
    (tmp_path / name).rename(tmp_path / "unnamed")
    assert _read(tmp_path / "unnamed", "arrow") == ROWS
    [source] = find_sources(tmp_path / "unnamed", "feather")
    with source.open() as table:
        assert table.columns == ["prompt", "seed", "tags"]


def test_a_feather_file_of_pandas_becomes_a_plan(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"prompt": ["a", "b"], "seed": [7, None]})
    frame["day"] = datetime.date(2026, 1, 2)
    frame.to_feather(tmp_path / "a.feather")
    store = MemoryStore()
    first, second = planned_rows(store, plan_rows(tmp_path / "a.feather", store))
    assert (first.prompt, first.seed, first.extra) == ("a", 7, {"day": "2026-01-02"})
    assert second.prompt == "b"


def _old_feather(path: Path) -> None:
    path.write_bytes(b"FEA1" + b"\0" * 64 + b"FEA1")


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("a.feather", _old_feather, "is a Feather file of version 1"),
        (
            "a.arrow",
            lambda path: path.write_bytes(b"nothing of Arrow"),
            "not a complete Arrow file",
        ),
        ("a.arrow", lambda path: path.write_bytes(b""), "not a complete Arrow file"),
        ("a.arrow", lambda path: path.write_bytes(gzip.compress(b"a")), "compressed as a whole"),
        ("a.txt", _file, "is an Arrow file; --input-format arrow"),
        ("a.csv", _stream, "is an Arrow stream; --input-format arrow"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, name: str, write: Callable[[Path], object], sentence: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(InvalidRequest, match=sentence):
        _read(tmp_path / name)


@pytest.mark.parametrize("write", [_file, _stream])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_that_was_cut_off_is_refused(
    tmp_path: Path, write: Callable[[Path], object], share: float
) -> None:
    write(tmp_path / "a.arrow")
    data = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InvalidRequest, match="not a complete Arrow file"):
        _read(tmp_path / "a.arrow")


def test_a_saved_dataset_is_read_without_the_caches_in_its_folder(tmp_path: Path) -> None:
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    loaded = datasets.load_from_disk(tmp_path / "saved")
    cache = tmp_path / "saved" / "cache-1.arrow"
    loaded.map(lambda row: {"prompt": row["prompt"] + "!"}, cache_file_name=str(cache))
    assert cache.exists()
    assert _read(tmp_path / "saved") == ROWS
    saved.shuffle(seed=1).select(range(100)).save_to_disk(tmp_path / "shuffled")
    assert _read(str(tmp_path / "shuffled")) == list(saved.shuffle(seed=1).select(range(100)))


def test_of_several_splits_one_must_be_named(tmp_path: Path) -> None:
    part = datasets.Dataset.from_list(ROWS[:3])
    datasets.DatasetDict(train=part, test=part).save_to_disk(tmp_path / "two")
    with pytest.raises(
        InvalidRequest, match=r"the splits train, test; name one, as in .*two/train"
    ):
        _read(tmp_path / "two")
    assert _read(tmp_path / "two" / "test") == ROWS[:3]
    datasets.DatasetDict(train=part).save_to_disk(tmp_path / "one")
    assert _read(tmp_path / "one") == ROWS[:3]


def test_images_of_a_saved_dataset_are_init_images(tmp_path: Path) -> None:
    content = BytesIO()
    Image.new("RGB", (8, 8), "red").save(content, "PNG")
    rows = [{"prompt": "a", "image": {"bytes": content.getvalue(), "path": None}, "strength": 0.5}]
    features = datasets.Features(
        prompt=datasets.Value("string"),
        image=datasets.Image(),
        strength=datasets.Value("float32"),
    )
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "saved")
    store = MemoryStore()
    [row] = planned_rows(store, plan_rows(tmp_path / "saved", store))
    assert store.get(row.image) == content.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", "{"),
        ("state.json", '{"_data_files": [{"file": "a"}]}'),
        ("state.json", '{"_data_files": [{"filename": "../a.arrow"}]}'),
        ("dataset_dict.json", "[]"),
        ("dataset_dict.json", '{"splits": ["../train"]}'),
    ],
)
def test_a_damaged_saved_dataset_is_refused(tmp_path: Path, name: str, content: str) -> None:
    datasets.Dataset.from_list(ROWS[:3]).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / name).write_text(content)
    with pytest.raises(InvalidRequest, match="is damaged"):
        _read(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "dataset_info.json").read_text())
