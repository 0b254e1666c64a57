"""API keys in a real Redis: created, found, listed, revoked, and never readable there."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access import keys as keys_module
from imagefleet.producer.gateway.access.api_key import (
    Scope,
    digest_of,
    id_in,
    key_text,
    new_id,
    new_secret,
    split_text,
)
from imagefleet.producer.gateway.access.keys import CACHE_S, ApiKeys
from imagefleet.producer.gateway.redis_keys import api_keys_key, api_keys_used_key
from imagefleet.shared.errors import BrokerUnavailable, InvalidRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.settings.settings import Settings

ALL = tuple(Scope)


@pytest.fixture
def connection(redis_server: LocalRedisServer, namespace: str) -> Iterator[Connection]:
    connection = Connection(Settings.load(redis_url=redis_server.url, namespace=namespace))
    yield connection
    connection.close()


@pytest.fixture
def keys(connection: Connection) -> ApiKeys:
    return ApiKeys(connection)


def test_a_key_is_found_by_its_text_with_its_tenant_scopes_and_limits(keys: ApiKeys) -> None:
    text = keys.create(
        "shop", "gold", [Scope.READ], max_priority=1, per_minute=60, images_per_day=100
    )
    found = keys.find(text)
    assert found is not None
    assert (found.id, found.name, found.tenant) == (id_in(text), "shop", "gold")
    assert found.scopes == (Scope.READ,)
    assert (found.max_priority, found.per_minute, found.images_per_day) == (1, 60, 100)


def test_redis_keeps_the_digest_of_a_secret_on_its_disk_and_no_secret(
    own_redis: LocalRedisServer,
) -> None:
    connection = Connection(Settings.load(redis_url=own_redis.url))
    keys = ApiKeys(connection)
    text = keys.create("shop", "gold", ALL)
    assert keys.find(text) is not None
    _, secret = split_text(text) or ("", "")
    connection.close()
    folder = Path(own_redis.url.removeprefix("unix://")).parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    contents = b"".join(path.read_bytes() for path in files)
    assert digest_of(secret).encode() in contents
    assert secret.encode() not in contents


def test_a_wrong_secret_an_unknown_id_and_rubbish_are_refused(keys: ApiKeys) -> None:
    text = keys.create("shop", "gold", ALL)
    other = keys.create("other", "tin", ALL)
    key_id, secret = split_text(text) or ("", "")
    _, secret_of_other = split_text(other) or ("", "")
    wrong = [
        key_text(key_id, new_secret()),
        key_text(key_id, secret_of_other),
        key_text(new_id(), secret),
        *("", "ifk_", f"ifk_{key_id}", f"ifk_{key_id}_", secret, f"ifk__{secret}"),
        *(text.lower(), text + "\n", text[:-1], text + "a", f"Bearer {text}", "\0" * 80),
        *("ifk_*_" + secret, "\ud800", "é" * 60, digest_of(secret), "x" * 100_000),
        key_text(key_id, digest_of(secret)[:43]),
    ]
    for _ in range(2):  # before and after the key itself was found
        assert [keys.find(each) for each in wrong] == [None] * len(wrong)
        assert keys.find(text) is not None


def test_each_text_costs_one_digest_and_one_comparison(
    keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = keys.create("shop", "gold", ALL)
    revoked = keys.create("old", "gold", ALL)
    keys.revoke(revoked)
    work: list[str] = []

    def digest(secret: str) -> str:
        work.append("digest")
        return digest_of(secret)

    def compare(one: str, other: str) -> bool:
        assert len(one) == len(other) == 64
        work.append("comparison")
        return one == other

    monkeypatch.setattr(keys_module, "digest_of", digest)
    monkeypatch.setattr("hmac.compare_digest", compare)
    unknown, wrong = key_text(new_id(), new_secret()), key_text(id_in(text), new_secret())
    for each in (text, text, wrong, unknown, unknown, revoked, "", "rubbish", text + "a"):
        work.clear()
        keys.find(each)
        assert work == ["digest", "comparison"], each


def test_a_revoked_key_opens_nothing_at_other_gateways_after_the_time_of_the_cache(
    keys: ApiKeys, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, other = keys.create("shop", "gold", ALL), keys.create("other", "gold", ALL)
    gateway, now = ApiKeys(connection), 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    assert gateway.find(text) is not None
    assert gateway.find(other) is not None
    assert keys.find(text) is not None
    assert keys.revoke(id_in(text)).revoked_at is not None
    assert keys.find(text) is None
    now += CACHE_S
    assert gateway.find(text) is None
    assert gateway.find(other) is not None


def test_a_found_key_is_read_again_only_after_the_time_of_the_cache(
    keys: ApiKeys, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = keys.create("shop", "gold", ALL)
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    assert keys.find(text) is not None
    client.delete(api_keys_key(namespace))
    now += CACHE_S - 0.001
    assert keys.find(text) is not None
    now += 0.001
    assert keys.find(text) is None


def test_a_key_is_found_at_once_although_its_gateway_looked_for_another(keys: ApiKeys) -> None:
    assert keys.find(key_text(new_id(), new_secret())) is None
    assert keys.find(keys.create("shop", "gold", ALL)) is not None


def test_a_revoked_key_stays_listed_and_stays_revoked(keys: ApiKeys) -> None:
    text = keys.create("shop", "gold", ALL)
    first, second = keys.revoke(text), keys.revoke(f"ifk_{id_in(text)}")
    assert first == second == keys.list()[0]


def test_revoking_keeps_the_fields_of_newer_releases(
    keys: ApiKeys, client: redis.Redis, namespace: str
) -> None:
    key_id = id_in(keys.create("shop", "gold", ALL))
    name = api_keys_key(namespace)
    newer = {**json.loads(str(client.hget(name, key_id))), "colours": [7]}
    client.hset(name, key_id, json.dumps(newer))
    revoked_at = keys.revoke(key_id).revoked_at
    assert json.loads(str(client.hget(name, key_id))) == {**newer, "revoked_at": revoked_at}


def test_an_expired_key_is_refused_also_if_it_was_found_before(
    keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_at = time.time() + 3600
    text = keys.create("shop", "gold", ALL, expires_at=expires_at)
    assert keys.find(text) is not None
    monkeypatch.setattr("time.time", lambda: expires_at)
    assert keys.find(text) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tenant": ""}, "tenant='': must be 1 to 128 letters"),
        ({"tenant": "*"}, "tenant='\\*': must be 1 to 128 letters"),
        ({"name": ""}, "name='': must be 1 to 100 printable characters"),
        ({"scopes": []}, "scopes=\\[\\]: must be one or more of submit, read, operate"),
        ({"scopes": ["read", "paint"]}, "must be one or more of submit, read, operate"),
        ({"max_priority": 10}, "max_priority=10: must be less than or equal to 9"),
        ({"per_minute": 0}, "per_minute=0: must be greater than or equal to 1"),
        ({"images_per_day": -1}, "images_per_day=-1: must be greater than or equal to 0"),
        ({"expires_at": 5.0}, "expires_at=5.0: must be in the future"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_limit(
    keys: ApiKeys, arguments: dict[str, object], sentence: str
) -> None:
    given: dict[str, object] = {"name": "shop", "tenant": "gold", "scopes": ALL, **arguments}
    with pytest.raises(InvalidRequest, match=sentence):
        keys.create(**given)  # type: ignore[arg-type]
    assert keys.list() == []


def test_the_id_of_no_key_is_named_when_it_is_revoked(keys: ApiKeys) -> None:
    secret = new_secret()
    with pytest.raises(InvalidRequest, match="id='abc': is the id of no key") as refused:
        keys.revoke(f"ifk_abc_{secret}")
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "damage", ["", "null", "[]", "{}", "{", '{"id": 7}', "\udcff", "[" * 100_000, "other"]
)
def test_a_damaged_record_costs_only_its_own_key(
    keys: ApiKeys,
    client: redis.Redis,
    namespace: str,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged, sound = keys.create("a", "gold", ALL), keys.create("b", "gold", ALL)
    name = api_keys_key(namespace)
    text = str(client.hget(name, id_in(sound))) if damage == "other" else damage
    client.hset(name, id_in(damaged), text.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert keys.find(damaged) is None
        assert [key.id for key in keys.list()] == [id_in(sound)]
    assert keys.find(sound) is not None
    assert f"the API key {id_in(damaged)} in Redis is damaged and refused" in caplog.text


def test_a_key_of_another_type_in_their_place_opens_nothing(
    keys: ApiKeys, client: redis.Redis, namespace: str
) -> None:
    client.set(api_keys_key(namespace), "rubbish")
    assert keys.find(key_text(new_id(), new_secret())) is None
    assert keys.list() == []
    with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
        keys.create("shop", "gold", ALL)


def test_the_last_use_is_noted_once_a_minute(
    keys: ApiKeys, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = keys.create("shop", "gold", ALL)
    key_id = id_in(text)
    assert keys.last_uses() == {}
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    keys.find(key_text(key_id, new_secret()))  # nobody used the key
    assert keys.last_uses() == {}
    keys.find(text)
    first = int(now)
    now += 59
    keys.find(text)
    assert keys.last_uses() == {key_id: first}
    now += 1
    keys.find(text)
    assert keys.last_uses() == {key_id: int(now)}
    client.hset(api_keys_used_key(namespace), "rubbish", "yesterday")
    assert keys.last_uses() == {key_id: int(now)}


def test_a_redis_that_is_away_is_named(own_redis: LocalRedisServer) -> None:
    keys = ApiKeys(Connection(Settings.load(redis_url=own_redis.url)))
    text = keys.create("shop", "gold", ALL)
    own_redis.kill()
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        keys.find(text)
