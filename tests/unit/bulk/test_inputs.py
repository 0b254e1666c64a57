"""All input types give the same rows, and errors name the row."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pandas
import pyarrow
import pytest
from datasets import Dataset
from pyarrow import parquet

from imagefleet.producer.bulk.inputs import InputNames, Rows, find_sources
from imagefleet.producer.bulk.rows import RejectedRow, Row
from imagefleet.shared.errors import InvalidRequest

ROWS = [{"prompt": "a red circle", "seed": 1}, {"prompt": 'ein Fuß, "zwei"', "seed": 2}]


def _read(rows: Rows, input_format: str | None = None) -> list[Row | None]:
    found: list[Row | None] = []
    for source in find_sources(rows, input_format):
        with source.open() as table:
            found += table.rows
    return found


def _columns(rows: Rows) -> Sequence[str] | None:
    [source] = find_sources(rows)
    with source.open() as table:
        return table.columns


def _prompts(rows: Rows) -> list[Any]:
    return [row["prompt"] if isinstance(row, Mapping) else row for row in _read(rows)]


def test_every_file_type_gives_the_same_prompts(tmp_path: Path) -> None:
    prompts = [str(row["prompt"]) for row in ROWS]
    (tmp_path / "a.txt").write_text("\n".join(prompts))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    quoted = "\n".join(f'"{p.replace(chr(34), chr(34) * 2)}",{n}' for n, p in enumerate(prompts))
    (tmp_path / "a.csv").write_text(f"prompt,seed\n{quoted}\n")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for kind in ("txt", "jsonl", "csv", "parquet"):
        assert _prompts(tmp_path / f"a.{kind}") == prompts, kind
    assert _prompts(ROWS) == _prompts(iter(prompts)) == prompts


def test_a_hugging_face_dataset_is_an_iterable_of_rows() -> None:
    assert _prompts(Dataset.from_list(ROWS)) == [row["prompt"] for row in ROWS]


@pytest.mark.parametrize(
    ("name", "a", "b"), [("a.txt", "a", "b"), ("a.jsonl", '"a"', '"b"'), ("a.csv", "a", "b")]
)
def test_a_blank_line_is_not_a_row_but_takes_a_row_number(
    tmp_path: Path, name: str, a: str, b: str
) -> None:
    header = "\nprompt\n" if name == "a.csv" else ""
    (tmp_path / name).write_text(f"{header}{a}\n\n  \t\r\n{b}\n\n")
    assert _prompts(tmp_path / name) == ["a", None, None, "b", None]


def test_a_line_of_empty_cells_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("prompt,seed\n,\n")
    assert _read(tmp_path / "two.csv") == [{"prompt": "", "seed": ""}]


@pytest.mark.parametrize("blank", ["", "  ", "\t", " \n \n"])
def test_a_quoted_blank_prompt_is_a_row(tmp_path: Path, blank: str) -> None:
    (tmp_path / "a.csv").write_text(f'prompt\n"{blank}"\n  \na\n')
    assert _read(tmp_path / "a.csv") == [{"prompt": blank}, None, {"prompt": "a"}]


def test_columns_are_known_if_the_input_has_a_header(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("\nprompt,seed\na,1\n")
    for rows in (tmp_path / "a.parquet", tmp_path / "a.csv", Dataset.from_list(ROWS)):
        assert list(_columns(rows) or ()) == ["prompt", "seed"], rows
    (tmp_path / "a.txt").write_text("prompt,seed\n")
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]))
    assert _columns(tmp_path / "a.txt") == ()
    assert _columns(tmp_path / "a.jsonl") is None
    assert _columns(ROWS) is None


def test_a_line_that_is_not_json_is_one_rejected_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n"b"\n[1]\n')
    found = _read(tmp_path / "a.jsonl")
    assert [type(row) for row in found] == [dict, RejectedRow, str, RejectedRow]


def test_a_line_with_more_cells_than_the_header_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt\na\nb,c\nd\n")
    found = _read(tmp_path / "a.csv")
    assert found[1] == RejectedRow("line", "3", "has 2 cells, the header has 1")
    assert found[2] == {"prompt": "d"}


@pytest.mark.parametrize(
    "broken", ['"one\ntwo"three\nfour"', f'"{"long " * 30_000}\ntwo\nthree"'], ids=["quote", "long"]
)
def test_the_lines_of_a_broken_cell_are_not_taken_for_rows(tmp_path: Path, broken: str) -> None:
    (tmp_path / "a.csv").write_text(f"prompt\na\n{broken}\nb\n")
    with pytest.raises(InvalidRequest, match="the row at line 3 is not CSV"):
        _read(tmp_path / "a.csv")


def test_a_data_frame_is_refused_because_it_would_yield_names_of_columns() -> None:
    frame = pandas.DataFrame(ROWS)
    with pytest.raises(InvalidRequest, match=r"is a data frame; pass its rows, as in df.to_dict"):
        find_sources(cast(Rows, frame))
    assert _prompts(frame.to_dict("records")) == [row["prompt"] for row in ROWS]


def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert _read(tmp_path / "a.txt") == ["a", "b"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_files_with_byte_order_marks_can_be_joined(tmp_path: Path, name: str) -> None:
    line = json.dumps("a cat") if name == "a.jsonl" else "a cat"
    (tmp_path / name).write_bytes(f"{line}\n".encode("utf-8-sig") * 2)
    assert _read(tmp_path / name) == ["a cat", "a cat"]


def test_a_folder_of_a_pattern_may_have_brackets_in_its_name(tmp_path: Path) -> None:
    for name in ("run [1]/a*.txt", "run [1]/b.txt", "run [1]/c/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name[8:])
    assert _prompts(str(tmp_path / "run [1]/*.txt")) == ["a*.txt", "b.txt"]
    assert _prompts(str(tmp_path / "run [1]/**/*.txt")) == ["a*.txt", "b.txt", "c/d.txt"]
    assert _prompts(str(tmp_path / "run [1]/a*.txt")) == ["a*.txt"]


def _write_copies(folder: Path) -> None:
    """Write a table, and hidden files beside it as Jupyter and macOS do."""
    for name in (".ipynb_checkpoints/a-checkpoint.csv", "._a.csv", ".hidden.csv", "a.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"prompt\n{name}\n")


@pytest.mark.parametrize("pattern", ["", "*.csv", "**/*.csv", "*"])
def test_hidden_files_are_read_only_by_their_names(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / ".prompts"  # hidden itself, but named
    _write_copies(folder)
    assert _prompts(str(folder / pattern)) == ["a.csv"]
    assert sorted(_prompts(str(folder / ".*.csv"))) == ["._a.csv", ".hidden.csv"]
    assert _prompts(folder / "._a.csv") == ["._a.csv"]


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidRequest, match="is not a complete Parquet file"):
        _read(path)


@pytest.mark.parametrize(
    "rows", ["nowhere.txt", "a.docx", "a" * 300, "~no-such-user/a.csv", {"prompt": "a"}, 3]
)
def test_an_input_that_cannot_be_read_is_refused(rows: Any) -> None:
    with pytest.raises(InvalidRequest):
        _read(rows)


@pytest.mark.parametrize("rows", [".", "*/*.txt", "**/*.txt"])
def test_a_dataset_below_its_input_is_not_read_as_input(tmp_path: Path, rows: str) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.txt").write_text("a cat")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "0.txt").write_text("the prompt of an image")
    names = InputNames((str(tmp_path / rows),))
    assert len(find_sources(names)) == 2
    [source] = find_sources(names, None, f"{(tmp_path / 'made').as_uri()}/")
    with source.open() as table:
        assert list(table.rows) == ["a cat"]
