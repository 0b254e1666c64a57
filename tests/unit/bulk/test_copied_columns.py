"""Columns that set no parameter: what is copied of them, and what is said of their names."""

import math
import re
from typing import Any

import numpy as np
import pandas
import pytest

from imagefleet.producer.bulk.copied_columns import to_json_value
from imagefleet.producer.bulk.rejected import read_rejected
from imagefleet.shared.storage.memory import MemoryStore
from tests.support.plans import plan_rows, planned_rows

JANUARY = "2026-01-02T03:04:05"


@pytest.mark.parametrize(
    ("value", "copied"),
    [
        (pandas.NaT, None),
        (pandas.NA, None),
        (np.datetime64("NaT"), None),
        (np.timedelta64("NaT"), None),
        (math.nan, None),
        (-math.inf, None),
        (np.float32("nan"), None),
        ([pandas.NA, {"a": pandas.NaT}], [None, {"a": None}]),
        (np.array([[JANUARY, "NaT"]], "datetime64[s]"), [[JANUARY, None]]),
        (np.datetime64(JANUARY), JANUARY),
        (np.array([1.5, math.nan]), [1.5, None]),
        ("NaT", "NaT"),
        (pandas.Timestamp(JANUARY), "2026-01-02 03:04:05"),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_value_that_is_missing_or_no_number_of_json_becomes_null(
    value: object, copied: object
) -> None:
    assert to_json_value("column", value) == copied


def test_rows_of_a_data_frame_with_missing_values_of_every_type_are_planned() -> None:
    frame = pandas.DataFrame(
        {
            "prompt": ["a", "b"],
            "seed": pandas.array([7, None], "Int64"),
            "at": [pandas.Timestamp(JANUARY), None],
            "is_good": pandas.array([True, None], "boolean"),
            "note": pandas.array(["x", None], "string"),
        }
    )
    store = MemoryStore()
    plan = plan_rows(frame.to_dict("records"), store)
    rows = sorted(planned_rows(store, plan), key=lambda row: row.row)
    assert [row.extra for row in rows] == [
        {"at": "2026-01-02 03:04:05", "is_good": True, "note": "x"},
        {"at": None, "is_good": None, "note": None},
    ]
    assert rows[0].seed == 7


def test_columns_that_are_too_large_are_rejected_by_the_name_of_the_largest() -> None:
    store = MemoryStore()
    plan_rows([{"prompt": "a"}, {"prompt": "b", "small": 1, "log": "x" * 70_000}], store)
    [rejected] = read_rejected(store)
    assert rejected["field"] == "log"
    assert re.fullmatch(
        "copied columns must have at most 65,536 bytes together, as JSON; this one has 70,002",
        str(rejected["reason"]),
    )


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"negative": "b"}, "negative_prompt here, --column negative_prompt=negative"),
        ({"Size": "8x8"}, "height and width here, give each a column of its own"),
        ({"negative": "b", "negative_prompt": "c"}, None),
        ({"caption": "b"}, None),
        ({"webhook": "b"}, None),
        ({"note": "b"}, None),
    ],
)
def test_a_column_whose_name_is_a_word_for_a_parameter_is_mentioned_once(
    caplog: pytest.LogCaptureFixture, row: dict[str, Any], sentence: str | None
) -> None:
    plan_rows([{"prompt": "a", **row}, {"prompt": "d", **row}], MemoryStore())
    found = [message for message in caplog.messages if "sets nothing and is copied" in message]
    assert len(found) == (sentence is not None)
    assert all(str(sentence) in message for message in found)
