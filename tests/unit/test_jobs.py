"""Validation errors name field, value and limit, and requests survive packing."""

import json
from typing import Any

import pytest

from imagefleet.shared.errors import InvalidRequest, MessageRejected, NewerMessage
from imagefleet.shared.jobs.message_arguments import MESSAGE_VERSION, pack, unpack
from imagefleet.shared.jobs.model import (
    MAX_ERROR_CHARACTERS,
    TERMINAL,
    TRANSITIONS,
    JobError,
    State,
    check_job_id,
)
from imagefleet.shared.jobs.parameter_types import MAX_PROMPT_CHARACTERS
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from tests.support.records import result_of_one_image

WRONG = [
    ({"prompt": ""}, "prompt", "must not be empty"),
    ({"prompt": " \n"}, "prompt", "must not be empty"),
    ({"prompt": "a" * (MAX_PROMPT_CHARACTERS + 1)}, "prompt", "at most 4000 characters"),
    ({"prompt": "a\x00b"}, "prompt", "control characters"),
    ({"prompt": "\ud800"}, "prompt", "broken UTF-8"),
    ({"prompt": "a\x7fb"}, "prompt", "control characters such as U+007F"),
    ({"prompt": "a", "negative_prompt": "\x9b31m"}, "negative_prompt", "such as U+009B"),
    ({"prompt": "\u200b\u200d \ufe0f"}, "prompt", "only blanks such as U+200B"),
    ({"prompt": "\u3164\u2800"}, "prompt", "only blanks such as U+3164"),
    ({"prompt": "a", "negative_prompt": "\ufeff"}, "negative_prompt", "such as U+FEFF"),
    ({"prompt": 5}, "prompt", "valid string"),
    ({"prompt": None}, "prompt", "valid string"),
    ({"prompt": "a", "seed": True}, "seed", "valid integer"),
    ({"prompt": "a", "seed": "7"}, "seed", "='7': must be a valid integer, not text"),
    ({"prompt": "a", "height": "64", "width": 64}, "height", "valid integer"),
    ({"prompt": "a", "tenant": "a@b"}, "tenant", "letters, digits, '_'"),
    ({"prompt": "a", "negative_prompt": "b" * 5000}, "negative_prompt", "at most 4000"),
    ({"prompt": "a", "height": 65, "width": 64}, "height", "divisible by 8"),
    ({"prompt": "a", "height": 64, "width": 4096}, "width", "between 8 and 2048 pixels"),
    ({"prompt": "a", "height": 64}, "height", "given together"),
    (
        {"prompt": "a", "num_inference_steps": 0},
        "num_inference_steps",
        "greater than or equal to 1",
    ),
    ({"prompt": "a", "num_inference_steps": 1001}, "num_inference_steps", "or equal to 1000"),
    ({"prompt": "a", "num_inference_steps": "x"}, "num_inference_steps", "valid integer"),
    ({"prompt": "a", "guidance_scale": -1}, "guidance_scale", "greater than or equal to 0"),
    ({"prompt": "a", "guidance_scale": float("nan")}, "guidance_scale", "finite"),
    ({"prompt": "a", "num_images_per_prompt": 65}, "num_images_per_prompt", "or equal to 64"),
    ({"prompt": "a", "seed": 2**32}, "seed", "or equal to 4294967295"),
    ({"prompt": "a", "format": "bmp"}, "format", "'png', 'webp' or 'jpeg'"),
    ({"prompt": "a", "priority": 10}, "priority", "or equal to 9"),
    ({"prompt": "a", "callback_url": "ftp://example.org"}, "callback_url", "http:// or https://"),
    ({"prompt": "a", "callback_url": "http://"}, "callback_url", "http:// or https://"),
    ({"prompt": "a", "callback_url": "https://u:p@a.example/"}, "callback_url", "a user or a pass"),
    ({"prompt": "a", "callback_url": "https://a..example/"}, "callback_url", "1 to 63 characters"),
    ({"prompt": "a", "image": f"https://{'a' * 64}.example/"}, "image", "1 to 63 characters"),
    ({"prompt": "a", "callback_events": ["done"]}, "callback_events", "'started'"),
    ({"prompt": "a", "steps": 4}, "steps", "num_inference_steps"),
    ({"prompt": "a", "image": "ftp://a/b c.png"}, "image", "an http(s) address, or the key"),
    ({"prompt": "a", "image": "http://"}, "image", "http:// or https://"),
    ({"prompt": "a", "image": "a" * 2049}, "image", "at most 2048 characters"),
    ({"prompt": "a", "mask_image": "mask.png"}, "mask_image", "needs an image"),
    ({"prompt": "a", "strength": 0.5}, "strength", "needs an image"),
    ({"prompt": "a", "image": "a.png", "strength": 0}, "strength", "greater than 0"),
    ({"prompt": "a", "image": "a.png", "strength": 1.1}, "strength", "or equal to 1"),
    ({}, "prompt", "field required"),
    ({"prompt": b"a"}, "prompt", "a valid string"),
    ({"prompt": "a", "negative_prompt": b""}, "negative_prompt", "a valid string"),
    ({"prompt": "a", "image": b"\x89PNG"}, "image", "a valid string"),
]


@pytest.mark.parametrize(("parameters", "field", "limit"), WRONG)
def test_a_wrong_field_is_refused_with_its_name_value_and_limit(
    parameters: dict[str, Any], field: str, limit: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        JobRequest.parse(parameters)
    assert refused.value.field == field
    assert refused.value.value is parameters.get(field)
    assert limit in str(refused.value)


def test_a_long_value_is_shortened_in_the_error() -> None:
    with pytest.raises(InvalidRequest) as refused:
        JobRequest.parse({"prompt": "a" * 100_000})
    assert len(str(refused.value)) < 200


def test_plain_celery_may_send_the_parameters_themselves() -> None:
    request = unpack({"prompt": "a", "seed": 5, "image": "jobs/x/0.png"}, "j")
    assert (request.prompt, request.seed, request.image) == ("a", 5, "jobs/x/0.png")
    assert unpack({"prompt": "a"}, "j").seed == unpack({"prompt": "b"}, "j").seed
    with pytest.raises(InvalidRequest, match="negativ_prompt"):
        unpack({"prompt": "a", "negativ_prompt": "b"}, "j")


def test_a_packed_request_is_unpacked_unchanged() -> None:
    request = JobRequest.parse({"prompt": "ein Kreis\nrot 🔴", "seed": 7, "guidance_scale": 7.5})
    assert unpack(json.loads(json.dumps(pack(request))), "j") == request


def test_the_seed_is_drawn_at_submission_so_that_every_attempt_has_the_same() -> None:
    request = JobRequest.parse({"prompt": "a"})
    assert unpack(pack(request), "j").seed == request.seed
    assert len({JobRequest.parse({"prompt": "a"}).seed for _ in range(20)}) > 1


def test_a_message_without_a_seed_gets_the_same_seed_at_each_delivery() -> None:
    message = {"version": 1, "request": {"prompt": "a"}}
    assert unpack(message, "j").seed == unpack(message, "j").seed
    assert unpack(message, "j").seed != unpack(message, "another").seed
    assert unpack({"version": 1, "request": {"prompt": "a", "seed": 5}}, "j").seed == 5


@pytest.mark.parametrize("version", [None, 0, MESSAGE_VERSION + 1, "1"])
def test_a_message_of_another_version_is_rejected(version: object) -> None:
    message = {**pack(JobRequest.parse({"prompt": "a"})), "version": version}
    with pytest.raises(MessageRejected, match="version"):
        unpack(message, "j")


@pytest.mark.parametrize("request_", [None, [], "prompt"])
def test_a_message_without_a_request_is_rejected(request_: object) -> None:
    with pytest.raises(MessageRejected, match="no request"):
        unpack({"version": 1, "request": request_}, "j")


@pytest.mark.parametrize("job_id", ["", "a/b", "../x", ".x", "a" * 129, "a b", 5, "ä"])
def test_an_invalid_job_id_is_refused(job_id: object) -> None:
    with pytest.raises(InvalidRequest, match="id="):
        check_job_id(job_id)


def test_terminal_states_allow_no_transition() -> None:
    assert {State.SUCCEEDED, State.FAILED, State.CANCELLED} == TERMINAL
    assert all(not TRANSITIONS[state] for state in TERMINAL)
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("prompt", ["a\nb\tc", "👩‍🚀 in space", "می‌خواهم", "日本語", "e\u0301"])
def test_joiners_and_line_breaks_inside_a_prompt_are_allowed(prompt: str) -> None:
    assert JobRequest.parse({"prompt": prompt, "negative_prompt": prompt}).prompt == prompt


def test_unknown_fields_are_ignored_only_in_messages_of_imagefleet() -> None:
    kwargs = {"version": 1, "request": {"prompt": "a", "camera": "wide"}}
    assert unpack(kwargs, "j", tolerant=True).prompt == "a"
    with pytest.raises(InvalidRequest, match="camera='wide': is not a parameter"):
        unpack(kwargs, "j")


@pytest.mark.parametrize("kwargs", [{}, {"seed": 3}])
def test_fields_of_plain_celery_without_a_prompt_are_refused_for_it(kwargs: object) -> None:
    with pytest.raises(InvalidRequest, match="prompt=None: field required"):
        unpack(kwargs, "j")


@pytest.mark.parametrize(
    ("version", "newer"), [(MESSAGE_VERSION + 1, True), (0, False), ("2", False), (None, False)]
)
def test_a_message_of_a_newer_version_is_told_apart(version: object, newer: bool) -> None:
    with pytest.raises(MessageRejected, match="has version") as rejected:
        unpack({"version": version, "request": {"prompt": "a"}}, "j")
    assert isinstance(rejected.value, NewerMessage) is newer
    assert str(rejected.value).endswith("; upgrade the worker") is newer


def test_an_error_carries_no_control_characters_and_has_a_bounded_length() -> None:
    error = JobError(code="input_unavailable", message="ICY \x1b[31m400\r\n" + "x" * 9_000)
    assert error.message.startswith("ICY \\x1b[31m400\\r\\nxxx")
    assert len(error.message) == MAX_ERROR_CHARACTERS
    assert JobError.model_validate(error.model_dump()) == error


def test_the_result_in_a_record_has_no_field_that_release_0_1_0_cannot_read() -> None:
    result = result_of_one_image(pixel_sha256="11")
    fields = result.record_fields()
    assert "pixel_sha256" not in fields["result"]
    assert JobResult.from_record(fields) == result
    [old] = JobResult.from_record({"result": fields["result"]}).images
    assert old.pixel_sha256 is None
