"""Alternatives and wildcards in prompts are expanded if the run says so, else a warning tells."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.memory import MemoryStore
from tests.support.plans import Rows, plan_rows, planned_rows


@pytest.fixture
def wildcards(tmp_path: Path) -> Path:
    folder = tmp_path / "wildcards"
    (folder / "places").mkdir(parents=True)
    (folder / "color.txt").write_text("\ufeffred\n\n# a comment\nblue\r\n")
    (folder / "places" / "far.txt").write_text("the {moon|sun}\n__color__ sea\n")
    (folder / "circle.txt").write_text("__circle__\n")
    (folder / "empty.txt").write_text("# nothing\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    return folder


def _prompts(rows: Rows, **options: Any) -> list[str]:
    store = MemoryStore()
    return [row.prompt for row in planned_rows(store, plan_rows(rows, store, **options))]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a {red|blue} car", ["a red car", "a blue car"]),
        ("{a|b} {c|d}", ["a c", "a d", "b c", "b d"]),
        ("{a|3::b}", ["a", "b"]),
        ("{a|{b|c} d}", ["a", "b d", "c d"]),
        ("{|very }big", ["big", "very big"]),
        ("{emphasis} a|b", ["{emphasis} a|b"]),
        ("__color__ {x|y}", ["red x", "red y", "blue x", "blue y"]),
        ("on __places/far__", ["on the moon", "on the sun", "on red sea", "on blue sea"]),
        ("snake_case __init", ["snake_case __init"]),
    ],
)
def test_a_row_becomes_all_combinations(wildcards: Path, prompt: str, expected: list[str]) -> None:
    options = {"alternatives": "combinatorial", "wildcards": wildcards}
    assert _prompts([prompt], **options) == expected


def test_combinations_are_rows_with_numbers_and_seeds_of_their_own() -> None:
    store = MemoryStore()
    rows: list[str | dict[str, Any]] = [
        {"prompt": "{a|b}", "note": 1},
        "c",
        {"prompt": "d", "negative_prompt": "{x|y}"},
    ]
    plan = plan_rows(rows, store, alternatives="combinatorial")
    planned = planned_rows(store, plan)
    assert [(row.row, row.prompt, row.negative_prompt) for row in planned] == [
        (0, "a", None),
        (1, "b", None),
        (2, "c", None),
        (3, "d", "x"),
        (4, "d", "y"),
    ]
    assert [row.extra for row in planned[:2]] == [{"note": 1}] * 2
    assert len({row.seed for row in planned}) == 5
    plan = plan_rows(rows, MemoryStore(), alternatives="combinatorial", limit=2)
    assert plan.rows == 2


def test_draws_follow_the_weights() -> None:
    drawn = Counter(_prompts(["{red|2::blue|5::green}"] * 4_000, alternatives="random"))
    # 500, 1000 and 2500 are expected; 6 standard deviations are 125, 164 and 184.
    for word, expected, most in (("red", 500, 125), ("blue", 1000, 164), ("green", 2500, 184)):
        assert abs(drawn[word] - expected) < most


def test_draws_follow_from_the_seed_of_the_row_alone() -> None:
    text = "{a|b|c|d} {a|b|c|d} {a|b|c|d} {a|b|c|d}"
    rows: list[str | dict[str, Any]] = [{"prompt": text, "seed": seed} for seed in (1, 2, 1, "1")]
    first, second, third, fourth = _prompts(rows, alternatives="random")
    assert first == third == fourth != second
    assert _prompts([text], alternatives="random", seed=1) == _prompts(
        [text], alternatives="random", seed=1
    )
    runs = {_prompts([text], alternatives="random", seed=seed)[0] for seed in range(20)}
    assert len(runs) > 10


def test_wildcards_alone_are_drawn(wildcards: Path) -> None:
    drawn = set(_prompts(["__color__"] * 50, wildcards=str(wildcards)))
    assert drawn == {"red", "blue"}


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("{a|b", "a { that is never closed"),
        ("__colour__", "holds no colour.txt"),
        ("__../secret__", "holds no ../secret.txt"),
        ("__circle__", "name it again"),
        ("__empty__", "holds no line"),
        ("{2$$a|b}", "several alternatives with $$"),
        ("{0::a|0::b}", "only alternatives of weight 0"),
        ("{a|b}" * 20, "1,048,576 combinations"),
        ("{a|" * 9_999, "braces within each other"),
        ("__a " * 9_999 + "{", "never closed"),
    ],
)
def test_what_cannot_be_expanded_rejects_its_row(wildcards: Path, prompt: str, reason: str) -> None:
    store = MemoryStore()
    options = {"alternatives": "combinatorial", "wildcards": wildcards}
    plan_rows(["fine", prompt], store, **options)  # type: ignore[arg-type]
    [rejected] = read_rejected(store)
    assert rejected["row"] == 1
    assert reason in str(rejected["reason"])


def test_without_a_folder_wildcards_stay_as_they_are() -> None:
    assert _prompts(["__color__ {a|b}"], alternatives="combinatorial") == [
        "__color__ a",
        "__color__ b",
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_text_that_is_not_expanded_is_named_once_a_file(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["plain {emphasis} snake_case_", "a {red|blue} car", "__color__ car"]
    content = {
        "a.txt": "\n".join(lines),
        "a.csv": "\n".join(["prompt,note", *(f"{line},1" for line in lines)]),
        "a.jsonl": "\n".join(f'{{"prompt": "{line}"}}' for line in lines),
    }
    (tmp_path / name).write_text(content[name])
    assert _prompts(tmp_path / name) == lines
    [message] = caplog.messages
    assert f"{name}: row 1 holds {{red|blue}}, which is read as text" in message


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", __file__):
        with pytest.raises(InvalidRequest, match=r"must be a folder of \.txt files"):
            _prompts(["a"], wildcards=folder)
    with pytest.raises(InvalidRequest, match="must be one of combinatorial, random"):
        _prompts(["a"], alternatives="all")
