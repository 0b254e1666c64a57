"""Signatures follow Standard Webhooks, and only valid ones are accepted."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta, timezone

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.webhooks.signature import (
    InvalidSignature,
    check_secrets,
    new_secret,
    sign,
    verify,
    webhook_id,
)

BODY = '{"type": "job.succeeded", "data": {"prompt": "ein Bär"}}'
SECRET = new_secret()


def _now() -> datetime:
    return datetime.now(UTC)


def test_the_signature_equals_the_one_of_the_specification() -> None:
    at = datetime(2021, 2, 25, 14, 35, 30, tzinfo=UTC)
    headers = sign("job-1.succeeded", BODY, [SECRET], at)
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.1614263730.{BODY}".encode()
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-timestamp"] == "1614263730"
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_the_time_zone_does_not_change_the_signature() -> None:
    at = datetime(2021, 2, 25, 14, 35, 30, tzinfo=UTC)
    elsewhere = at.astimezone(timezone(timedelta(hours=-7)))
    assert sign("a", BODY, [SECRET], at) == sign("a", BODY, [SECRET], elsewhere)


def test_a_signed_message_is_accepted() -> None:
    verify(sign("a", BODY, [SECRET], _now()), BODY.encode(), [SECRET])


def test_header_names_may_have_any_case() -> None:
    headers = {name.title(): value for name, value in sign("a", BODY, [SECRET], _now()).items()}
    verify(headers, BODY.encode(), [SECRET])


def test_during_a_rotation_receivers_with_either_secret_accept() -> None:
    old, new = new_secret(), new_secret()
    headers = sign("a", BODY, [new, old], _now())
    verify(headers, BODY.encode(), [old])
    verify(headers, BODY.encode(), [new])
    verify(sign("a", BODY, [new], _now()), BODY.encode(), [old, new])


@pytest.mark.parametrize("minutes", [-6, 6])
def test_a_message_more_than_five_minutes_off_is_refused(minutes: int) -> None:
    headers = sign("a", BODY, [SECRET], _now() + timedelta(minutes=minutes))
    with pytest.raises(InvalidSignature, match="timestamp"):
        verify(headers, BODY.encode(), [SECRET])


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_other"},
        {"webhook-timestamp": "1614263730"},
        {"webhook-timestamp": "now"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "1e400"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,not base64!"},
        {"webhook-signature": "v1,ä"},
        {"webhook-signature": "v1a," + "A" * 86 + "=="},
        {"webhook-signature": "v1,a,b v1"},
    ],
)
def test_altered_headers_are_refused(change: dict[str, str]) -> None:
    headers = sign("a", BODY, [SECRET], _now() - timedelta(seconds=30)) | change
    with pytest.raises(InvalidSignature):
        verify(headers, BODY.encode(), [SECRET])


@pytest.mark.parametrize("body", [b"", BODY.encode() + b" ", b"\xff\xfe", BODY.encode()[:-1]])
def test_an_altered_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidSignature):
        verify(sign("a", BODY, [SECRET], _now()), body, [SECRET])


def test_a_wrong_secret_no_secret_and_no_headers_are_refused() -> None:
    headers = sign("a", BODY, [SECRET], _now())
    for sent, secrets in [(headers, [new_secret()]), (headers, []), ({}, [SECRET])]:
        with pytest.raises(InvalidSignature):
            verify(sent, BODY.encode(), secrets)


def test_without_secrets_no_signature_header_is_sent() -> None:
    assert "webhook-signature" not in sign("a", BODY, [], _now())


def test_the_webhook_id_is_stable_and_contains_no_full_stop() -> None:
    assert webhook_id("my.job.succeeded", BODY) == webhook_id("my.job.succeeded", BODY)
    assert webhook_id("my.job.succeeded", BODY) != webhook_id("my.job.failed", BODY)
    assert "." not in webhook_id("my.job.1614263730.x", BODY)


def test_a_job_that_ends_again_has_another_webhook_id() -> None:
    """It was redriven, or submitted again under its id: the body has another time."""
    assert webhook_id("a.failed", '{"timestamp": "1"}') != webhook_id(
        "a.failed", '{"timestamp": "2"}'
    )


def test_new_secrets_are_valid() -> None:
    check_secrets([new_secret(), new_secret()])


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "whsec_c2hvcnQ=", "whsec_***", "A" * 44, "whsec_ä"],
)
def test_an_invalid_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="number 2 is not whsec_") as refused:
        check_secrets([SECRET, secret])
    assert SECRET not in str(refused.value)
    assert len(secret) < 9 or secret not in str(refused.value)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!", "secret"])
def test_a_secret_that_is_none_is_named_by_its_place_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^secret number 2 is not whsec_ followed by"):
        verify(sign("a", BODY, [SECRET], _now()), b"another", [SECRET, secret])
