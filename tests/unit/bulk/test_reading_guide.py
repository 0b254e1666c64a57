"""The examples in the card of a dataset, run as they stand, read the values that went in."""

import datetime
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pandas
import pytest

from imagefleet.shared.bulk.file_layout import CARD
from imagefleet.testing import FakeFleet

TIMEOUT_S: Final = 900
ROWS: Final = 12
LATE: Final = 10
"""Only rows from this one on have some columns and values. `datasets` infers types of five."""


def _row(number: int) -> dict[str, Any]:
    """Return a row with columns of all kinds."""
    is_late = number >= LATE
    row: dict[str, Any] = {
        "prompt": f'ein Fuß {number}; "三毛猫", \U0001f600\u2028x',
        "seed": 2**32 - 1 - number,
        "guidance_rescale": 0.25 if number % 2 else 0.0,
        "guidance_scale": 7.3,
        "text": f"text {number}",
        "number": number,
        "large": 2**53 + number,
        "share": number / 8,
        "whole": float(number),
        "number then share": 2.5 if is_late else 1,
        "truth": number % 2 == 0,
        "null": None,
        "null then text": "late" if is_late else None,
        "empty": "",
        "digits": f"00{number}",
        "date": datetime.date(2026, 1, number + 1),
        "time": datetime.datetime(2026, 1, 1, 10, number, tzinfo=datetime.UTC),
        "date as text": f"2026-01-{number + 1:02}",
        "missing time": pandas.NaT,
        "missing number": math.nan,
        "list": [number, number + 1],
        "empty list then texts": ["a", None] if is_late else [],
        "nested": {"a b": {"list": [{"n": number, "late": is_late or None}]}, "ü": [[]]},
        "empty object": {},
        "mixed": [number, f"{number}", float(number), number % 2 == 0][number % 4],
        "mixed list": [1, "a", None],
        'odd "name": #\u2028 \U0001f600': "x",
    }
    return {**row, "only late": {"x": number}} if is_late else row


def _copied(number: int) -> dict[str, Any]:
    """Return the columns of a row that are copied, as the documents say that they become."""
    row = {name: value for name, value in _row(number).items() if name not in PARAMETERS}
    texts = {name: str(row[name]) for name in ("date", "time")}
    return {**row, **texts, "missing time": None, "missing number": None}


PARAMETERS: Final = ("prompt", "seed", "guidance_rescale", "guidance_scale")
SCRIPT: Final = """
import json, re, sys
import PIL.Image
text = open("README.md", encoding="utf-8").read()
found = {}
for block in re.findall("^```python\\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
    [library] = re.findall("^import (?!glob|json|os)(.*)$", block, re.MULTILINE)
    scope = {}
    if library not in sys.argv[1:]:
        continue
    exec(block, scope)
    if library in ("datasets", "webdataset"):
        rows = [dict(row) for row in scope.get("rows", scope.get("samples"))]
        for row in rows:
            row["size"] = [v.size for v in row.values() if isinstance(v, PIL.Image.Image)]
            row |= {name: None for name, v in row.items() if isinstance(v, PIL.Image.Image)}
    elif library == "pandas":
        rows = scope["table"].to_dict("records")
    elif library == "polars":
        rows = scope.get("lines", scope.get("table")).to_dicts()
    else:
        relation = scope.get("lines", scope.get("table"))
        rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
    found[library] = rows
print(json.dumps(found))
"""
"""Runs the examples of the libraries that are named, and prints the rows that each of them reads.
"""


def _make(folder: Path, kind: str, image_format: str = "png") -> None:
    rows = [_row(number) for number in range(ROWS)]
    with FakeFleet() as fleet:
        run = fleet.client.bulk(rows, folder, format=kind, image_format=image_format, shard_size=5)
        assert run.wait(timeout=TIMEOUT_S).images == ROWS


def _read(folder: Path, cache: Path, *libraries: str) -> dict[str, list[dict[str, Any]]]:
    """Return the documents of samples that each library reads, in the order of rows."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *libraries],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(libraries)
    return {
        library: sorted(map(_document, rows), key=lambda document: document["row"])
        for library, rows in found.items()
    }


def _document(row: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a sample, wherever a format has them, and check its other columns."""
    for name in ("metadata", "line", "json"):
        if isinstance(row.get(name), str):
            document: dict[str, Any] = json.loads(row[name])
            columns = {"prompt", "seed"} & row.keys()
            assert {column: document[column] for column in columns} == {
                column: row[column] for column in columns
            }
            break
    else:
        document = row.get("json", row)
    assert row.get("size", [[64, 64]]) == [[64, 64]]
    return document


def _same(one: object, other: object) -> bool:
    """Return whether values and their types are the same: 1, 1.0 and True differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _check(documents: list[dict[str, Any]]) -> None:
    assert [document["row"] for document in documents] == list(range(ROWS))
    for number, document in enumerate(documents):
        given = _row(number)
        rescale = document.get("guidance_rescale")
        is_left_out = rescale is None or math.isnan(rescale)
        assert (0.0 if is_left_out else rescale) == given["guidance_rescale"]
        for name in ("prompt", "seed", "guidance_scale"):
            assert _same(document[name], given[name])
        assert _same(document["extra"], _copied(number))


@pytest.mark.parametrize("kind", ["webdataset", "files", "parquet"])
def test_tables_have_each_value_as_it_was_given(tmp_path: Path, kind: str) -> None:
    _make(tmp_path / "data", kind)
    libraries = ("pandas", "polars", "duckdb")
    for documents in _read(tmp_path / "data", tmp_path / "cache", *libraries).values():
        _check(documents)


@pytest.mark.parametrize("image_format", ["png", "webp", "jpeg"])
@pytest.mark.parametrize("kind", ["files", "parquet"])
def test_datasets_has_each_value_as_it_was_given_beside_its_image(
    tmp_path: Path, kind: str, image_format: str
) -> None:
    _make(tmp_path / "data", kind, image_format)
    [documents] = _read(tmp_path / "data", tmp_path / "cache", "datasets").values()
    _check(documents)


MIXED: Final = ("mixed", "mixed list")
"""`datasets` reads these columns as text, because their values have several types."""


@pytest.mark.parametrize("image_format", ["png", "webp", "jpeg"])
def test_the_samples_of_a_webdataset_have_each_value_and_datasets_has_each_column(
    tmp_path: Path, image_format: str
) -> None:
    _make(tmp_path / "data", "webdataset", image_format)
    found = _read(tmp_path / "data", tmp_path / "cache", "webdataset", "datasets")
    _check(found["webdataset"])
    names = {name for number in range(ROWS) for name in _copied(number)}
    for number, document in enumerate(found["datasets"]):
        expected = {**dict.fromkeys(names), **_copied(number)}
        expected["mixed"], expected["mixed list"] = str(expected["mixed"]), ["1", "a", None]
        assert document["extra"] == expected
        assert document["prompt"] == _row(number)["prompt"]
        assert (document["guidance_rescale"] or 0.0) == _row(number)["guidance_rescale"]


def test_the_card_names_every_library_for_its_format(tmp_path: Path) -> None:
    for kind, ours in (("webdataset", 5), ("files", 4), ("parquet", 4)):
        _make(tmp_path / kind, kind)
        card = (tmp_path / kind / CARD).read_text()
        assert card.count("```python\n") == ours
        assert ("import webdataset" in card) is (kind == "webdataset")
