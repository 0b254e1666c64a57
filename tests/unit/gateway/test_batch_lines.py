"""The lines of a batch's input file: what is wrong with them, and the rows that they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from imagefleet.producer.bulk.rows import RejectedRow
from imagefleet.producer.gateway.batches.batch_lines import MAX_LINES, BatchLines
from imagefleet.producer.gateway.batches.batch_output import lines_of

_URL = "/v1/images/generations"


def _lines(folder: Path, *bodies: dict[str, Any]) -> BatchLines:
    path = folder / "in.jsonl"
    requests = (
        {"custom_id": f"{n}", "method": "POST", "url": _URL, "body": body}
        for n, body in enumerate(bodies)
    )
    path.write_text("".join(f"{json.dumps(each)}\n\n" for each in requests))
    return BatchLines(path=path, endpoint=_URL, aliases={"dall-e-3": "sd-1.4"})


def test_a_row_has_the_parameters_of_its_line_and_its_name(tmp_path: Path) -> None:
    body = {"prompt": "a", "n": 2, "size": "64x32", "quality": "high", "seed": 7}
    lines = _lines(tmp_path, body, {"prompt": "b"})
    assert lines.check() == ()
    assert list(lines.rows()) == [
        {
            "prompt": "a",
            "num_images_per_prompt": 2,
            "width": 64,
            "height": 32,
            "seed": 7,
            "custom_id": "0",
        },
        {"prompt": "b", "custom_id": "1"},
    ]
    assert lines.numbers == [1, 3]  # blank lines count


def test_model_and_format_are_those_of_all_lines(tmp_path: Path) -> None:
    body = {"prompt": "a", "model": "dall-e-3", "output_format": "webp"}
    lines = _lines(tmp_path, body, {**body, "model": "sd-1.4"})
    assert lines.check() == ()
    assert lines.shared == {"model": "sd-1.4", "format": "webp"}
    assert all(
        not isinstance(row, RejectedRow | str) and row.keys() == {"prompt", "custom_id"}
        for row in lines.rows()
    )
    [error] = _lines(tmp_path, body, {**body, "output_format": "png"}).check()
    assert (error.code, error.line) == ("mismatched_format", 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", "b64_json"),
        ("stream", True),
        ("ttl", 5),
        ("callback_url", "http://a"),
        ("tenant", "gold"),
        ("priority", 0),
        ("sead", 3),
        ("size", "big"),
    ],
)
def test_a_wrong_body_is_a_rejected_row_with_the_field(
    tmp_path: Path, field: str, value: object
) -> None:
    lines = _lines(tmp_path, {"prompt": "a"}, {"prompt": "a", field: value})
    assert lines.check() == ()
    [right, wrong] = lines.rows()
    assert not isinstance(right, RejectedRow)
    assert isinstance(wrong, RejectedRow)
    assert wrong.field == field
    assert [(each.line, each.param) for each in lines.rejected] == [(3, field)]


@pytest.mark.parametrize(
    "body", ['{"prompt": "a", "prompt": "b"}', '{"prompt": "a", "strength": NaN}']
)
def test_a_line_that_two_programs_may_read_differently_is_no_json(
    tmp_path: Path, body: str
) -> None:
    lines = _lines(tmp_path, {"prompt": "a"})
    with lines.path.open("a") as file:
        file.write(f'{{"custom_id": "b", "method": "POST", "url": "{_URL}", "body": {body}}}\n')
    [error] = lines.check()
    assert (error.code, error.line) == ("invalid_json_line", 3)


def test_a_batch_has_at_most_50000_requests(tmp_path: Path) -> None:
    assert _lines(tmp_path, *[{"prompt": "a"}] * MAX_LINES).check() == ()
    [error] = _lines(tmp_path, *[{"prompt": "a"}] * (MAX_LINES + 1)).check()
    assert error.code == "too_many_requests"


def test_lines_are_found_wherever_a_file_is_cut() -> None:
    text = b"one\ntwo\n\nthree"
    for size in range(1, len(text) + 1):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert list(lines_of(parts)) == [b"one", b"two", b"", b"three"]
