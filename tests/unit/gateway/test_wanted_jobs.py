"""A search reads fields of records that anybody may have written, and finds only what is asked."""

import json
from typing import Any

import pytest

from imagefleet.producer.gateway.jobs.timeline import Cursor, Span
from imagefleet.producer.gateway.jobs.wanted_jobs import WantedJobs
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.jobs.model import State

REQUEST = {"prompt": "A Straße", "seed": 7, "loras": [["ink", 0.8], ["style", 1.0]]}


def _accepts(wanted: WantedJobs, request: Any = REQUEST, **record: str) -> bool:
    fields = {"state": "queued", "request": json.dumps(request), **record}
    return wanted.accepts([fields.get(name) for name in wanted.fields])


@pytest.mark.parametrize(
    ("wanted", "is_found"),
    [
        (WantedJobs(), True),
        (WantedJobs(state=State.QUEUED), True),
        (WantedJobs(state=State.RUNNING, seed=7), False),
        (WantedJobs(prompt="STRASSE"), True),
        (WantedJobs(prompt="street"), False),
        (WantedJobs(seed=7, lora="style"), True),
        (WantedJobs(seed=7, lora="sty"), False),
        (WantedJobs(seed=8, lora="style"), False),
        (WantedJobs(model="sdxl"), False),
    ],
)
def test_a_job_is_found_if_all_holds(wanted: WantedJobs, is_found: bool) -> None:
    assert _accepts(wanted) is is_found


def test_the_model_is_what_the_job_named_else_what_made_it() -> None:
    wanted, result = WantedJobs(model="sdxl"), json.dumps({"model": "sdxl"})
    assert _accepts(wanted, {**REQUEST, "model": "sdxl"})
    assert _accepts(wanted, result=result)
    assert not _accepts(wanted, {**REQUEST, "model": "sd-1.4"}, result=result)


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', "null", '{"loras": {}}', '{"prompt": 7}'])
def test_what_cannot_be_read_is_not_found(text: str) -> None:
    for wanted in (WantedJobs(prompt="a"), WantedJobs(seed=1), WantedJobs(lora="a")):
        assert not wanted.accepts(["queued", text])
    assert not WantedJobs(prompt="a").accepts([None, json.dumps(REQUEST)])


def test_few_fields_are_read_of_each_record() -> None:
    assert WantedJobs(state=State.FAILED).fields == ("state",)
    assert WantedJobs(prompt="a").fields == ("state", "request")
    assert WantedJobs(model="a").fields == ("state", "request", "result")


def test_of_a_plain_list_no_record_is_left_out() -> None:
    assert WantedJobs().is_plain
    assert WantedJobs(starred=True, span=Span(oldest=5)).is_plain
    for wanted in (
        WantedJobs(starred=False),
        WantedJobs(state=State.QUEUED),
        WantedJobs(seed=1, starred=True),
    ):
        assert not wanted.is_plain


def test_a_cursor_is_the_text_that_a_page_gave() -> None:
    for text in ("before-1700000000000000", "after-0"):
        assert str(Cursor.parse(text)) == text
    for text in (
        "",
        "before-",
        "before-x",
        "Before-1",
        "before-1 ",
        f"after-{'9' * 17}",
        "after-٣",
    ):
        with pytest.raises(Problem, match="earlier page"):
            Cursor.parse(text)
