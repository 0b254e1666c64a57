"""Tables as other programs write them are read as these programs read them, or refused by name."""

import bz2
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet

from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.bulk.rows import RejectedRow
from imagefleet.producer.bulk.text_files import MAX_LINE_CHARACTERS
from imagefleet.shared.errors import InvalidRequest

PROMPTS = ["a red circle", "ein Fuß; groß", "三毛猫\n\U0001f600", 'a "b", c']
FRAME = pandas.DataFrame({"prompt": PROMPTS, "note": ["1", "zwei", ";", "x\ty"]})
ROWS = FRAME.to_dict("records")


def _read(path: Path | str, input_format: str | None = None, **options: Any) -> list[Any]:
    found: list[Any] = []
    for source in find_sources(path, input_format, **options):
        with source.open() as table:
            found += table.rows
    return found


def _zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, "zstd", asbytes=True))


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.tsv": lambda path: FRAME.to_csv(path, sep="\t", index=False),
    "a.csv.gz": lambda path: FRAME.to_csv(path, index=False),
    "a.csv.bz2": lambda path: FRAME.to_csv(path, index=False),
    "a.csv.xz": lambda path: FRAME.to_csv(path, index=False),
    "utf-16.csv": lambda path: FRAME.to_csv(path, index=False, encoding="utf-16"),
    "utf-32.csv": lambda path: FRAME.to_csv(path, index=False, encoding="utf-32"),
    "marked.csv": lambda path: FRAME.to_csv(path, index=False, encoding="utf-8-sig"),
    "a.json": lambda path: FRAME.to_json(path, orient="records"),
    "indented.json": lambda path: FRAME.to_json(path, orient="records", indent=2),
    "lines.json": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "a.ndjson": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "a.jsonl.gz": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "a.json.gz": lambda path: FRAME.to_json(path, orient="records"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_pandas_writes_is_read(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert _read(tmp_path / name) == ROWS


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, _zstd])
def test_a_compressed_file_is_known_by_its_content(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.txt").write_bytes(compress(b"one\n\ntwo\n"))
    assert _read(tmp_path / "a.txt") == ["one", None, "two"]
    (tmp_path / "a.txt").write_bytes(compress(b"one\n" * 100_000)[:-20])
    with pytest.raises(InvalidRequest, match="is damaged"):
        _read(tmp_path / "a.txt")


def test_a_line_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a" * (MAX_LINE_CHARACTERS + 1), 1))
    with pytest.raises(InvalidRequest, match="line 1 has more than 16,777,216 characters"):
        _read(tmp_path / "a.txt.gz")


def test_a_delimiter_and_an_encoding_can_be_named(tmp_path: Path) -> None:
    frame = FRAME.drop(2)
    frame.to_csv(tmp_path / "a.csv", sep=";", index=False, encoding="cp1252")
    rows = _read(tmp_path / "a.csv", delimiter=";", encoding="cp1252")
    assert rows == frame.to_dict("records")
    (tmp_path / "a.txt").write_bytes("größer\n".encode("utf-16-le"))
    assert _read(tmp_path / "a.txt", encoding="utf-16-le") == ["größer"]


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "prompt\na\n")


def _parquet(path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("a.csv", lambda p: FRAME.to_csv(p, sep=";", index=False), "--delimiter ';'"),
        ("a.csv", lambda p: FRAME.to_csv(p, sep="\t", index=False), r"--delimiter \$'\\t'"),
        ("a.csv", lambda p: FRAME.to_csv(p, encoding="utf-16-le"), "without a byte order mark"),
        ("a.txt", lambda p: FRAME.to_csv(p, encoding="utf-16-be"), "without a byte order mark"),
        ("a.csv", _zip, "is a ZIP archive or a workbook"),
        ("a.csv", _parquet, "is a Parquet file; --input-format parquet"),
        ("a.parquet", lambda p: p.write_bytes(gzip.compress(b"PAR1")), "compressed as a whole"),
        ("a.txt", lambda p: p.write_bytes(gzip.compress(gzip.compress(b"a"))), "decompress it"),
        ("a.txt", lambda p: p.write_bytes(b"\xff\xfea\0b"), "is not utf-16-le throughout"),
        ("a.json", lambda p: p.write_text('{\n"prompt": "a"\n}\n'), "must be an array of rows"),
        ("a.json", lambda p: p.write_text('["a", "b"'), "neither , nor ]"),
        ("a.json", lambda p: p.write_text('["a", "b'), "row 1 of its array"),
        ("a.json", lambda p: p.write_text('["a", ]'), "row 1 of its array"),
        ("a.json", lambda p: p.write_text('["a"] ["b"]'), "goes on behind its array"),
        ("a.json", lambda p: p.write_text("[" * 99_999), "row 0 of its array"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], object], sentence: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(InvalidRequest, match=sentence):
        _read(tmp_path / name)


@pytest.mark.parametrize(
    ("option", "value"),
    [("delimiter", ";;"), ("delimiter", '"'), ("encoding", "utf-9"), ("encoding", "base64")],
)
def test_a_wrong_option_is_refused(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        _read(tmp_path / "a.csv", **{option: value})


@pytest.mark.parametrize("text", ["[]", " [ ] \n", ""])
def test_an_empty_array_has_no_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert _read(tmp_path / "a.json") == []


def test_an_array_is_read_in_parts(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "list": list(range(n % 7))} for n in range(20_000)]
    (tmp_path / "a.json").write_text(json.dumps([*rows, "text", 12, "x" * 200_000]))
    *found, number, long = _read(tmp_path / "a.json")
    assert found == [*rows, "text"]
    assert isinstance(number, RejectedRow)
    assert long == "x" * 200_000


def test_json_in_a_folder_is_not_taken_for_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "a_stats.json").write_text('{"count": 1}')
    assert _read(tmp_path) == ["a"]
    (tmp_path / "rows.json").write_text('["b"]')
    assert _read(str(tmp_path / "r*.json")) == ["b"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_lines_may_end_with_carriage_returns_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'"a"\r\r"b"\r')
    expected = ["a", None, "b"] if name == "a.jsonl" else ['"a"', None, '"b"']
    assert _read(tmp_path / name) == expected


def test_an_open_file_gives_its_lines_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffone\n\ntwo\n")
    with (tmp_path / "a.txt").open() as file:
        [source] = find_sources(file)
        with source.open() as table:
            assert list(table.rows) == ["one", None, "two"]
    with (tmp_path / "a.txt").open("rb") as raw, pytest.raises(InvalidRequest, match="as text"):
        find_sources(raw)[0].open()  # type: ignore[arg-type]
