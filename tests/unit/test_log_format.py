"""Log lines as JSON."""

import json
import logging
import sys
from typing import Any

from imagefleet.worker.process.log_filter import PrintableFilter
from imagefleet.worker.process.log_format import JsonFormatter, log_fields


def _format(message: str, *args: object, failing: bool = False) -> Any:
    error = None
    if failing:
        try:
            raise ValueError("no\x1b[31m")
        except ValueError:
            error = sys.exc_info()
    record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, message, args, error)
    record.created = 0.25
    PrintableFilter().filter(record)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    return json.loads(line)


def test_a_line_is_one_object() -> None:
    line = _format('%s says "hello"\n', "é")
    assert line == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "ERROR",
        "logger": "a.b",
        "message": 'é says "hello"\\n',
        "thread": "MainThread",
    }


def test_fields_of_a_block_are_added_and_removed() -> None:
    with log_fields(job_id="1", tenant=None), log_fields(claim="c"):
        line = _format("inside")
    assert (line["job_id"], line["claim"]) == ("1", "c")
    assert "tenant" not in line
    assert "job_id" not in _format("outside")


def test_a_traceback_is_part_of_the_object() -> None:
    line = _format("it failed", failing=True)
    assert line["message"] == "it failed"
    assert "ValueError: no" in line["exception"]
    assert "\x1b" not in line["exception"]
