"""Every row of the table of layouts in docs/datasets.md says what happens with such an input."""

import re
from pathlib import Path
from typing import Final

import pytest

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.inputs import InputNames, find_sources
from imagefleet.producer.bulk.planner import plan_dataset
from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.producer.bulk.row_images import UploadedRowImages
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.memory import MemoryStore
from tests.support.layouts import LAYOUTS, Layout
from tests.support.plans import planned_rows

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "datasets.md"
READING: Final = ("input_format", "delimiter", "encoding")
RESULT: Final = re.compile(r'(read|refused|rejected|warning)(?:: "(.*)")?')


def _table() -> dict[str, str]:
    """Return the results of the table by layout."""
    text = DOCUMENT.read_text()
    section = text[text.index("## Layouts, one by one") :]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [re.split(r"(?<!\\)\|", row) for row in rows]
    assert all(len(row) == 4 for row in cells)
    return {row[1].strip().replace("\\|", "|"): row[2].strip() for row in cells}


TABLE: Final = _table()


def _plan(folder: Path, layout: Layout) -> tuple[MemoryStore, Plan]:
    store = MemoryStore()
    reading = {name: value for name, value in layout.options.items() if name in READING}
    others = {name: value for name, value in layout.options.items() if name not in READING}
    sources = find_sources(InputNames((str(folder / layout.name),)), **reading)
    with UploadedRowImages(lambda: store, read_files=True) as images:
        plan, _ = plan_dataset(sources, parse_spec(images, **others), store, {}, images)
    return store, plan


def test_the_table_has_every_layout_once() -> None:
    assert list(TABLE) == list(LAYOUTS)
    assert len(TABLE) >= 60


@pytest.mark.parametrize("name", TABLE)
def test_a_layout_is_read_or_refused_as_the_table_says(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    layout = LAYOUTS[name]
    layout.write(tmp_path / layout.name)
    match = RESULT.fullmatch(TABLE[name])
    assert match is not None
    result, sentence = match[1], (match[2] or "").replace("\\|", "|")
    if result == "refused":
        assert layout.rows == []
        with pytest.raises(InvalidRequest) as refused:
            _plan(tmp_path, layout)
        assert sentence in str(refused.value)
        return
    store, plan = _plan(tmp_path, layout)
    planned = [
        row.model_dump() for row in sorted(planned_rows(store, plan), key=lambda row: row.row)
    ]
    assert [
        {field: row[field] for field in expected}
        for row, expected in zip(planned, layout.rows, strict=True)
    ] == layout.rows
    rejected = [str(row["reason"]) for row in read_rejected(store)]
    assert len(rejected) == (result == "rejected")
    if result == "rejected":
        assert sentence in rejected[0]
    if result == "warning":
        assert any(sentence in message for message in caplog.messages)
