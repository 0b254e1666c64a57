"""A negative prompt that is given but empty is told from one that is not given.

SDXL encodes the first and uses zeros for the second. Release 0.1.0 wrote an empty text for both.
"""

import json

import pytest

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.submit_errors import check_same_request


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ""),
        ({"negative_prompt": None}, ""),
        ({"negative_prompt": ""}, " "),
        ({"negative_prompt": "  "}, "  "),
        ({"negative_prompt": "blue"}, "blue"),
    ],
)
def test_an_empty_negative_prompt_becomes_a_blank_and_stays_one(
    parameters: dict[str, str], expected: str
) -> None:
    request = JobRequest.parse({"prompt": "a star", **parameters})
    assert request.negative_prompt == expected
    sent = json.loads(json.dumps(pack(request)))
    assert unpack(sent, "id", tolerant=True).negative_prompt == expected
    assert JobRequest.parse_stored(request.model_dump_json()).negative_prompt == expected


def test_an_empty_text_of_plain_celery_is_given_and_one_of_the_release_is_not() -> None:
    message = {"version": 1, "request": {"prompt": "a star", "negative_prompt": ""}}
    assert unpack(message, "id").negative_prompt == " "
    assert unpack(message, "id", tolerant=True).negative_prompt == ""


def test_a_job_of_the_release_with_an_empty_text_may_be_submitted_again() -> None:
    stored = JobRequest.parse({"prompt": "a star", "seed": 1})
    check_same_request("id", JobRequest.parse({**stored.model_dump()}), stored.model_dump_json())
    again = {"prompt": "a star", "seed": 1, "negative_prompt": ""}
    check_same_request("id", JobRequest.parse(again), stored.model_dump_json())
    other = JobRequest.parse(again | {"negative_prompt": "blue"})
    with pytest.raises(InvalidRequest, match="in use already"):
        check_same_request("id", other, stored.model_dump_json())
