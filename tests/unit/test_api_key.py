"""The text, the digest and the record of an API key."""

import json
import math
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from imagefleet.producer.gateway.access.api_key import (
    ApiKey,
    Scope,
    digest_of,
    id_in,
    key_text,
    new_id,
    new_secret,
    split_text,
)
from imagefleet.producer.gateway.access.caller import LOOPBACK, Caller

RECORD = {
    "id": new_id(),
    "name": "shop",
    "tenant": "gold",
    "scopes": ["submit", "read"],
    "digest": digest_of("s"),
    "created_at": 1.0,
}


def test_a_text_is_split_into_the_id_and_the_secret_that_made_it() -> None:
    key_id, secret = new_id(), new_secret()
    assert split_text(key_text(key_id, secret)) == (key_id, secret)
    assert id_in(key_text(key_id, secret)) == id_in(f"ifk_{key_id}") == id_in(key_id) == key_id


def test_a_secret_has_256_bits_and_no_two_are_equal() -> None:
    secrets = {new_secret() for _ in range(2_000)}
    letters = set("".join(secrets))
    assert len(secrets) == 2_000
    assert len(letters) == 62
    assert {len(secret) * math.log2(len(letters)) >= 256 for secret in secrets} == {True}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text.removeprefix("ifk_"),
        lambda text: text[:-1],
        lambda text: text + "a",
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text.upper(),
        lambda text: text.replace("_", "-"),
        lambda text: text[:-1] + "é",
        lambda text: text[:-1] + "\ud800",
        lambda text: text[:-1] + "_",
        lambda text: "x" * 1_000_000,
    ],
)
def test_a_text_of_another_form_is_no_key(
    change: Callable[[str], str],
) -> None:
    assert split_text(change(key_text(new_id(), new_secret()))) is None


def test_a_record_of_a_newer_release_is_read_without_what_is_not_known() -> None:
    newer = {**RECORD, "scopes": ["read", "paint"], "colours": 7}
    key = ApiKey.model_validate_json(json.dumps(newer))
    assert key.scopes == (Scope.READ,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenant": ""},
        {"tenant": None},
        {"tenant": "*"},
        {"tenant": "a@b"},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "a" * 101},
        {"scopes": "read"},
        {"scopes": None},
        {"max_priority": -1},
        {"max_priority": 10},
        {"per_minute": 0},
        {"per_minute": 100_001},
        {"images_per_day": -1},
        {"digest": "abc"},
        {"expires_at": math.inf},
    ],
)
def test_a_wrong_field_makes_no_key(wrong: dict[str, object]) -> None:
    ApiKey.model_validate(RECORD)
    with pytest.raises(ValidationError):
        ApiKey.model_validate({**RECORD, **wrong})


def test_no_key_is_without_a_tenant() -> None:
    with pytest.raises(ValidationError, match="tenant"):
        ApiKey.model_validate({name: RECORD[name] for name in RECORD.keys() - {"tenant"}})


def test_a_key_is_valid_until_it_expires_or_is_revoked() -> None:
    key = ApiKey.model_validate({**RECORD, "expires_at": 100.0})
    assert [key.is_valid_at(now) for now in (1.0, 99.9, 100.0, 101.0)] == [True, True, False, False]
    assert not key.model_copy(update={"revoked_at": 50.0}).is_valid_at(1.0)


def test_a_representation_of_a_key_has_no_digest() -> None:
    assert str(RECORD["digest"]) not in repr(ApiKey.model_validate(RECORD))


def test_a_caller_has_the_rights_of_its_key() -> None:
    key = ApiKey.model_validate({**RECORD, "scopes": ["read"], "max_priority": 2, "per_minute": 9})
    caller = Caller.of(key, now=0.0)
    assert [caller.may(scope) for scope in Scope] == [False, True, False]
    assert (caller.key_id, caller.tenant, caller.max_priority) == (RECORD["id"], "gold", 2)
    assert (caller.per_minute, caller.images_per_day) == (9, None)


def test_a_caller_without_a_key_may_do_everything_for_every_tenant() -> None:
    assert [LOOPBACK.may(scope) for scope in Scope] == [True, True, True]
    assert (LOOPBACK.tenant, LOOPBACK.max_priority, LOOPBACK.per_minute) == (None, 0, None)
