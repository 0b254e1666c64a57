"""Operators read errors without the values of tenants."""

import pytest

from imagefleet.producer.gateway.operations.private_text import without_private
from imagefleet.shared.errors import InvalidRequest

SECRET = 'a secret\'s "plan" of gold'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("prompt='the secret': must be shorter", "prompt=…: must be shorter"),
        ('prompt="the secret\'s": must', "prompt=…: must"),
        (r"prompt='it\'s \"secret\"': must", "prompt=…: must"),
        ("prompt='cut before its e", "prompt=…"),
        ("the worker's lease isn't there", "the worker's lease isn't there"),
        (
            "http://a.example:80/secret?key=x does not answer",
            "http://a.example:80/… does not answer",
        ),
        ("cannot read s3://bucket/secret/1.png", "cannot read s3://bucket/…"),
        ("the devices failed: RESOURCE_EXHAUSTED", "the devices failed: RESOURCE_EXHAUSTED"),
    ],
)
def test_quoted_values_and_paths_of_addresses_are_left_out(text: str, shown: str) -> None:
    assert without_private(text) == shown


def test_an_error_about_a_parameter_does_not_show_it() -> None:
    for value in (SECRET, {"prompt": SECRET}, [SECRET], SECRET * 10):
        assert "plan" not in without_private(str(InvalidRequest("prompt", value, "must be short")))


def test_the_prompt_of_the_job_is_left_out_without_quotes() -> None:
    text = f"ValueError: cannot encode {SECRET} now"
    assert without_private(text, (SECRET, None, "")) == "ValueError: cannot encode … now"
    assert without_private("a batch failed", ("a",)) == "a batch failed"
