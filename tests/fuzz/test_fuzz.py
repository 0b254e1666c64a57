"""Short runs of the fuzzer; `make fuzz` is the long one."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.cases import (
    AnswerCase,
    Case,
    ControlCase,
    KeyCase,
    MessageCase,
    Part,
    RequestCase,
    WeightsCase,
    dump_cases,
    load_cases,
)
from tests.fuzz.generate import RoundSize, draw_round
from tests.fuzz.ledger import Ledger, Problem, holds_controls, suspects_first
from tests.fuzz.left_out import LEFT_OUT, kind_left_out

ROOT: Final = Path(__file__).parents[2]
_SEED: Final = "12"
_KINDS: Final = ("requests", "messages", "answers", "latents", "controls", "keys", "weights")
_SIZES: Final = {
    "short": (60, 40, 12, 20, 20, 40, 60),
    "long": (400, 160, 60, 200, 100, 300, 600),
}


@pytest.mark.parametrize("size", _SIZES)
def test_no_random_or_hostile_input_harms_a_worker(size: str, tmp_path: Path) -> None:
    """The run has its own process, because it starts servers and a worker.

    The seed is printed, and those of the rounds follow from it. `FUZZ_SEED` sets another.
    """
    seed = os.environ.get("FUZZ_SEED", _SEED)
    sizes = [f"--{kind}={count}" for kind, count in zip(_KINDS, _SIZES[size], strict=True)]
    options = ["--seed", seed, *sizes, "--max-failures", "1", "--no-reduce"]
    command = [sys.executable, "-m", "tests.fuzz", *options, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_draws_the_same_cases_again() -> None:
    size = RoundSize(
        requests=20, messages=20, answers=10, latents=10, controls=10, keys=20, weights=10
    )
    first, second, other = (repr(draw_round(seed, size)) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_random_numbers_of_other_threads_disturb_no_drawing() -> None:
    drawn = threading.Event()

    def draw_random_numbers() -> None:
        while not drawn.is_set():
            random.random()

    thread = threading.Thread(target=draw_random_numbers)
    thread.start()
    try:
        assert draw_round(7, RoundSize(requests=20, messages=20, answers=10))
    finally:
        drawn.set()
        thread.join()


def test_cases_are_read_as_they_were_written(tmp_path: Path) -> None:
    parts = (Part(data=b"\x00\xff", repeat=3, pause_s=0.5),)
    cases: list[Case] = [
        RequestCase(id="a", parameters={"prompt": "\ud800\x1b", "seed": 10**400, "\udfff": None}),
        MessageCase(id="b", message=bytes(range(256)), queue="q\x06\x163", record={"state": ""}),
        MessageCase(id="c", message=b"", queue="q"),
        AnswerCase(id="d", role="image", parts=parts, hang_s=1.0, reset=True),
        ControlCase(id="e", control=b"\xff"),
        KeyCase(id="f", key="job:@ID@", kind="hash", fields={"\ud800": "\x00"}),
        WeightsCase(id="g", setting="lora", model="xl", data=bytes(range(256))),
    ]
    dump_cases(cases, tmp_path / "cases.json", seed=1, problems=["x"])
    read = load_cases(tmp_path / "cases.json")
    assert read[:3] == cases[:3]
    assert read[4:] == cases[4:]
    assert isinstance(read[3], AnswerCase)
    assert tuple(read[3].parts) == parts
    assert (read[3].role, read[3].hang_s, read[3].reset) == ("image", 1.0, True)


def test_the_cases_that_a_problem_names_are_tried_before_all_others() -> None:
    cases: list[Case] = [RequestCase(id=name, parameters={}) for name in "abc"]
    [found] = suspects_first(cases, [Problem(sentence="x", suspects=["b", "z"])])
    assert found.id == "b"
    assert suspects_first(cases, [Problem(sentence="x")]) == cases


def test_control_characters_and_surrogates_are_found_in_texts() -> None:
    assert all(holds_controls(text) for text in ("\x1b[31m", "\x9b", "\x7f", "a\rb", "\ud800"))
    assert not any(holds_controls(text) for text in ("a\tb", "\\x1b[31m", "\U0010ffff", "é🟥"))


def test_the_ledger_counts_by_kind_and_outcome() -> None:
    ledger = Ledger()
    for outcome in ("refused", "refused", "succeeded"):
        ledger.count("request", outcome)
    ledger.raise_to("memory", 2)
    ledger.raise_to("memory", 1)
    table = ledger.table()
    for row in (
        "| request | refused | 2 |",
        "| request | **in all** | 3 |",
        "| highest | memory | 2 |",
    ):
        assert row in table


def test_a_kind_that_is_left_out_has_a_name_and_a_reason() -> None:
    for kind in LEFT_OUT:
        assert kind.name
        assert kind.reason
    ordinary = RequestCase(id="a", parameters={"prompt": "a red star"})
    assert kind_left_out(ordinary) is None
