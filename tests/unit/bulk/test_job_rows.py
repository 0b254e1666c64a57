"""Standard input of `imagefleet submit` is read as tables are, and refused rather than guessed."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from imagefleet.producer.bulk.job_rows import read_jobs
from imagefleet.producer.bulk.text_files import FileOptions
from imagefleet.shared.errors import InvalidRequest

FRAME = pandas.DataFrame({"prompt": ["a", "b"], "seed": [7, None], "guidance_scale": [1.5, 2]})
JOBS = [{"prompt": "a", "seed": 7, "guidance_scale": 1.5}, {"prompt": "b", "guidance_scale": 2.0}]


def _jobs(data: bytes | str, **options: Any) -> list[dict[str, Any]]:
    raw = data.encode() if isinstance(data, str) else data
    common = options.pop("common", {})
    ignored = options.pop("ignored", ())
    return list(read_jobs(io.BytesIO(raw), "-", FileOptions(**options), common, ignored))


@pytest.mark.parametrize(
    ("file_type", "data"),
    [
        ("jsonl", FRAME.to_json(orient="records", lines=True)),
        ("json", FRAME.to_json(orient="records")),
        ("parquet", FRAME.to_parquet()),
        (None, FRAME.to_json(orient="records", lines=True)),
        (None, FRAME.to_json(orient="records", indent=1)),
        (None, "\ufeff\n " + FRAME.to_json(orient="records")),
        (None, gzip.compress(FRAME.to_json(orient="records").encode(), mtime=0)),
    ],
)
def test_rows_become_jobs(file_type: str | None, data: bytes | str) -> None:
    assert _jobs(data, file_type=file_type) == JOBS


@pytest.mark.parametrize(("file_type", "mark"), [("csv", ","), ("tsv", "\t"), ("csv", ";")])
def test_cells_of_csv_become_parameters(file_type: str, mark: str) -> None:
    text = FRAME.to_csv(index=False, sep=mark)
    jobs = _jobs(text, file_type=file_type, delimiter=mark if mark == ";" else None)
    assert [(job["prompt"], job.get("seed")) for job in jobs] == [("a", 7), ("b", None)]
    assert [float(job["guidance_scale"]) for job in jobs] == [1.5, 2.0]


def test_options_of_another_tool_are_read_in_text() -> None:
    assert _jobs('plain\n--prompt "a cat" --steps 3\n') == [
        {"prompt": "plain"},
        {"prompt": "a cat", "num_inference_steps": 3},
    ]


def test_a_column_names_the_ids_and_one_is_left_out() -> None:
    text = '{"prompt": "a", "id": "one", "note": 1}\n'
    assert _jobs(text, ignored=["note"]) == [{"prompt": "a", "id": "one"}]


def test_an_image_of_a_row_is_a_file_if_it_looks_like_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    [job] = _jobs(json.dumps({"prompt": "a", "image": str(path), "strength": 0.5}))
    assert job["image"] == path
    [job] = _jobs('{"prompt": "a", "image": "https://example.org/a.png"}')
    assert job["image"] == "https://example.org/a.png"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("{red|blue} car\n", "read as JSON because of how it begins"),
        ("[a cat] in a hat\n", "--input-format txt takes its lines for prompts"),
        ('{"prompt": "a"}\nb\n', "row 1: line='b': is not JSON"),
        ('{"prompt": "a"}\n{"promt": "b"}\n', "row 1: promt='b': is not a parameter of a job"),
        ('{"prompt": "a", "steps": 5}', "row 0: steps=5: is called num_inference_steps here"),
        ('{"prompt": "a", "seed": -1}', "row 0: seed=-1"),
        ("a\n\n--prompt b --what c\n", "line 3: --what"),
        ("a\nSteps: 5, Seed: 3, CFG scale: 7\nb\nSteps: 5, Seed: 3, CFG scale: 99", "row 1: guid"),
        ("[]", "standard input holds no prompt"),
        ("", "standard input holds no prompt"),
    ],
)
def test_what_is_no_job_is_refused(data: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _jobs(data)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("prompt", ["{red|blue} car", "[a cat] in a hat", '{"a": 1}'])
def test_the_named_type_txt_takes_every_line_for_a_prompt(prompt: str) -> None:
    assert _jobs(f"{prompt}\n", file_type="txt") == [{"prompt": prompt}]


def test_rows_are_checked_with_the_parameters_of_all_jobs() -> None:
    with pytest.raises(InvalidRequest, match="line 1: strength"):
        _jobs("a\n", common={"strength": 0.5})
    assert _jobs("a\n", common={"image": Path("x.png"), "strength": 0.5}) == [{"prompt": "a"}]
