"""An address that sends wrong keys in masses is slowed down, and its right keys are not."""

import re
from collections.abc import Iterator

import httpx
import pytest
import redis

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope, key_text, new_id, new_secret
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, until

_PATH = "/v1/models"
_PER_MINUTE = 2
"""The next wrong key is taken half a minute later, when such a test has ended."""


@pytest.fixture
def guarded(own_redis: LocalRedisServer, start: StartWorker) -> GatewayProcess:
    return start_gateway(
        start,
        IMAGEFLEET_REDIS_URL=own_redis.url,
        IMAGEFLEET_HTTP_REQUIRE_KEYS="true",
        IMAGEFLEET_HTTP_WRONG_KEYS_PER_MINUTE=str(_PER_MINUTE),
    )


@pytest.fixture
def admin(own_redis: LocalRedisServer) -> Iterator[redis.Redis]:
    with connect(own_redis.url) as client:
        yield client


def _wrong_key() -> dict[str, str]:
    return {"authorization": f"Bearer {key_text(new_id(), new_secret())}"}


def _from(address: str, url: str) -> httpx.Client:
    """Return a client whose requests come from this address of the host."""
    return httpx.Client(base_url=url, transport=httpx.HTTPTransport(local_address=address))


def test_only_wrong_keys_of_the_address_that_sent_too_many_are_refused(
    guarded: GatewayProcess, own_redis: LocalRedisServer, namespace: str
) -> None:
    with Client(own_redis.url, namespace=namespace) as producer:
        right = {"x-api-key": ApiKeys(producer.connection).create("a", "gold", [Scope.READ])}
    with _from("127.0.0.1", guarded.url) as client:
        for _ in range(_PER_MINUTE):
            assert client.get(_PATH).status_code == 401  # no key at all does not count
            assert client.get(_PATH, headers=_wrong_key()).status_code == 401
        for wrong in (_wrong_key(), {"x-api-key": "rubbish"}, right | _wrong_key()):
            refused = client.get(_PATH, headers=wrong)
            assert refused.status_code == 429, wrong
            assert refused.json()["error"]["code"] == "too_many_wrong_keys"
            assert 1 <= int(refused.headers["retry-after"]) <= 60 / _PER_MINUTE
        assert client.get(_PATH, headers=right).status_code == 200
        assert client.get(_PATH).status_code == 401
    with _from("127.0.0.2", guarded.url) as client:
        assert client.get(_PATH, headers=_wrong_key()).status_code == 401
        forwarded = _wrong_key() | {"x-forwarded-for": "192.0.2.7"}
        assert client.get(_PATH, headers=forwarded).status_code == 401
        assert client.get(_PATH, headers=forwarded).status_code == 429

    def errors() -> list[str]:
        return re.findall(r"GET /v1/models 429 .* error=(\S*)", guarded.process.output())

    until(lambda: len(errors()) >= 4)  # an answer is sent before it is logged
    assert errors() == ["too_many_wrong_keys"] * 4


def test_wrong_keys_write_nothing_to_redis(guarded: GatewayProcess, admin: redis.Redis) -> None:
    for _ in range(10):
        headers = _wrong_key() | {"x-stainless-retry-count": "1"}
        httpx.post(f"{guarded.url}/v1/images/generations", json={"prompt": "a"}, headers=headers)
    calls = admin.info("commandstats")
    assert calls["cmdstat_hget"]["calls"] >= 10  # each key was looked up
    assert not {f"cmdstat_{name}" for name in ("hset", "zadd", "incr", "lpush")} & calls.keys()
    assert not list(admin.scan_iter("*refused*"))
