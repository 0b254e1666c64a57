"""Text from outside is printed so that no terminal obeys it, and without credentials."""

import json
import logging
import sys

import pytest

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.text.printable import (
    counted,
    mask_credentials,
    mask_fetched_url,
    printable,
    printable_json,
    printable_lines,
)
from imagefleet.worker.process.log_filter import PrintableFilter


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a red star, ein Bär, 星, 👩\u200d🎨", "a red star, ein Bär, 星, 👩\u200d🎨"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("one\r\ntwo\tthree\x00", r"one\r\ntwo\tthree\x00"),
        ("\x7f\x85\x9b31m", r"\x7f\x85\x9b31m"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("half \ud800", r"half \ud800"),
        ("", ""),
    ],
)
def test_characters_that_terminals_obey_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_long_text_is_cut() -> None:
    assert printable("a" * 200, 200) == "a" * 200
    assert printable("a" * 201, 200) == "a" * 199 + "…"
    assert len(printable("\x1b" * 10_000_000, 200)) == 200


def test_lines_and_json_keep_their_line_breaks() -> None:
    assert printable_lines("one\n\ttwo\x1b\r") == "one\n\ttwo\\x1b\\r"
    document = json.dumps({"a": "x\x9b\u202ey", "b": "ü\n"}, ensure_ascii=False, indent=1)
    shown = printable_json(document)
    assert json.loads(shown) == json.loads(document)
    assert "\x9b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "redis://:hunter2@host/0",
        "redis://user:hunter2@host/0",
        "redis://:a?hunter2@host/0",
        "redis://:a#hunter2@host/0",
        "redis://:a/hunter2@host/0",
        "redis://:a@hunter2@host/0",
        "cannot connect to 'http://key:hunter2@minio:9000': refused",
        "s3://bucket?endpoint_url=http://key:hunter2@minio:9000",
        "redis://host/0?password=hunter2",
        "sentinel://host:1/fleet?db=0&sentinel_password=hunter2",
        "https://bucket/x?X-Amz-Security-Token=hunter2&a=b",
    ],
)
def test_credentials_in_addresses_are_masked(text: str) -> None:
    shown = mask_credentials(text)
    assert "hunter2" not in shown
    assert "***" in shown
    assert mask_credentials(shown) == shown


@pytest.mark.parametrize(
    "text", ["s3://bucket/a?endpoint_url=http://minio:9000&region=x", "file:///a@b", "a@b", ""]
)
def test_addresses_without_credentials_stay_as_they_are(text: str) -> None:
    assert mask_credentials(text) in (text, "file://***@b")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:hunter2@host/a.png", "https://***@host/a.png"),
        (
            "https://b.s3.amazonaws.com/a.png?X-Amz-Credential=AKIA%2Fx&X-Amz-Date=2"
            "&X-Amz-Signature=ab12",
            "https://b.s3.amazonaws.com/a.png?X-Amz-Credential=***&X-Amz-Date=2"
            "&X-Amz-Signature=***",
        ),
        (
            "https://h/a.png?v=1&AWSAccessKeyId=A&Signature=s",
            "https://h/a.png?v=1&AWSAccessKeyId=***&Signature=***",
        ),
        ("https://h/a.png?X-Goog-Signature=ab12", "https://h/a.png?X-Goog-Signature=***"),
        (
            "https://h.blob.core.windows.net/a?sv=2&sig=x%3D",
            "https://h.blob.core.windows.net/a?sv=2&sig=***",
        ),
        ("https://h/@me/a@2x.png?size=2", "https://h/@me/a@2x.png?size=2"),
        ("inputs/0123.png", "inputs/0123.png"),
    ],
)
def test_addresses_of_images_are_published_without_what_opens_them(url: str, shown: str) -> None:
    assert mask_fetched_url(url) == shown


def test_a_noun_is_singular_for_one_thing_only() -> None:
    shown = [counted(number, "dead letter") for number in (0, 1, 2, 1_000)]
    assert shown == ["0 dead letters", "1 dead letter", "2 dead letters", "1,000 dead letters"]


def test_an_invalid_request_shows_field_and_value_escaped() -> None:
    error = InvalidRequest("negativ\x1b[31m\u202e_prompt", "\x1b]0;x\x07\u202e", "no\rsuch field")
    assert str(error) == (r"negativ\x1b[31m\u202e_prompt='\x1b]0;x\x07\u202e': no\rsuch field")


def test_a_log_record_is_escaped_masked_and_bounded() -> None:
    try:
        raise ValueError("\x1b[31m redis://:hunter2@host\r" + "x" * 100_000)
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord(
        "name", logging.ERROR, "path", 1, "%s failed: %s", ("\x1b[0m\n", "a" * 10_000), info
    )
    assert PrintableFilter().filter(record)
    text = logging.Formatter().format(record)
    assert record.getMessage().startswith(r"\x1b[0m\n failed: aaa")
    assert "\x1b" not in text
    assert "\r" not in text
    assert "hunter2" not in text
    assert len(text) < 30_000


def test_a_traceback_is_shown_before_an_error_that_quotes_a_long_value() -> None:
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("name", logging.ERROR, "path", 1, "failed", (), info)
    assert PrintableFilter().filter(record)
    assert record.exc_text is not None
    lines = record.exc_text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("ValueError: xxx")
    assert max(map(len, lines)) <= 4_000


def test_a_log_record_that_cannot_be_formatted_is_kept() -> None:
    record = logging.LogRecord("name", logging.ERROR, "path", 1, "%d", ("no number",), None)
    assert PrintableFilter().filter(record)
    assert "cannot be formatted: TypeError" in record.getMessage()


def test_a_number_is_shown_with_its_noun_in_the_right_form() -> None:
    shown = [counted(number, "shape") for number in (0, 1, 2)]
    assert shown == ["0 shapes", "1 shape", "2 shapes"]
