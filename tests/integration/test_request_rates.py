"""Requests a minute and images a day, counted in a real Redis by several gateways together."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import LOOPBACK, Caller
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.access.rates import RequestRates
from imagefleet.producer.gateway.redis_keys import image_charge_key, image_quota_key, rates_prefix
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.model import new_job_id
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.settings.settings import Settings
from tests.support.certificates import make_certificate
from tests.support.processes import ROOT
from tests.support.redis import RedisProxy, SentinelPair, TcpServer

NOON = 1_000 * 86_400 + 43_200.0
"""This is noon of 1972-09-27."""


def caller(
    key_id: str = "k", *, per_minute: int | None = None, images_per_day: int | None = None
) -> Caller:
    """Return a caller with these limits."""
    return Caller(
        key_id=key_id,
        name="shop",
        tenant="gold",
        scopes=frozenset(),
        max_priority=3,
        per_minute=per_minute,
        images_per_day=images_per_day,
    )


@pytest.fixture
def connection(redis_server: LocalRedisServer, namespace: str) -> Iterator[Connection]:
    connection = Connection(Settings.load(redis_url=redis_server.url, namespace=namespace))
    yield connection
    connection.close()


def test_a_request_beyond_the_limit_waits_until_the_first_is_a_minute_old(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, shop, now = RequestRates(connection), caller(per_minute=3), NOON
    monkeypatch.setattr("time.time", lambda: now)
    assert rates.take(shop) == 0
    now += 10
    assert [rates.take(shop), rates.take(shop)] == [0, 0]
    now += 20
    assert [rates.take(shop), rates.take(shop)] == pytest.approx([30, 30])
    now += 29.5
    assert rates.take(shop) == pytest.approx(0.5)
    now += 0.6
    assert rates.take(shop) == 0  # refused requests did not count
    assert rates.take(shop) == pytest.approx(9.9)


def test_keys_are_counted_apart_and_callers_without_a_limit_are_not_counted(
    connection: Connection, client: redis.Redis, namespace: str
) -> None:
    rates = RequestRates(connection)
    assert [rates.take(caller("a", per_minute=1)) > 0 for _ in range(2)] == [False, True]
    assert rates.take(caller("b", per_minute=1)) == 0
    assert [rates.take(caller("c")) for _ in range(5)] == [0] * 5
    assert [rates.take(LOOPBACK) for _ in range(5)] == [0] * 5
    names = list(client.scan_iter(f"{namespace}:*"))
    assert len(names) == 2
    assert all(str(name).startswith(f"{rates_prefix(namespace)}:") for name in names)
    assert all(0 < client.ttl(name) <= 60 for name in names)


_GATEWAY = """
import sys
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.access.rates import RequestRates
from imagefleet.shared.settings.settings import Settings
connection = Connection(Settings.load(redis_url=sys.argv[1], namespace=sys.argv[2]))
rates, quota = RequestRates(connection), ImageQuota(connection)
shop = Caller(
    key_id="k", name="shop", tenant="gold", scopes=frozenset(), max_priority=3,
    per_minute=100, images_per_day=100,
)
sys.stdin.readline()
print(sum(rates.take(shop) == 0 for _ in range(100)))
print(sum(quota.charge(shop, 3, f"{sys.argv[3]}-{n}").allowed for n in range(40)))
"""


def test_two_gateway_processes_share_the_limits(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    command = [sys.executable, "-c", _GATEWAY, redis_server.url, namespace]
    gateways = [
        subprocess.Popen(
            [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for name in ("one", "other")
    ]
    for gateway in gateways:
        assert gateway.stdin is not None
        gateway.stdin.write("go\n")
        gateway.stdin.flush()
    outputs = [gateway.communicate(timeout=900)[0].split() for gateway in gateways]
    assert sum(int(requests) for requests, _ in outputs) == 100
    assert sum(int(charges) for _, charges in outputs) == 33  # 99 of 100 images


def test_threads_of_one_gateway_share_the_limits(connection: Connection) -> None:
    rates, quota = RequestRates(connection), ImageQuota(connection)
    shop = caller(per_minute=50, images_per_day=50)
    allowed: list[bool] = []
    charged: list[bool] = []

    def ask() -> None:
        allowed.extend(rates.take(shop) == 0 for _ in range(20))
        charged.extend(quota.charge(shop, 1, new_job_id()).allowed for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(allowed), sum(charged), len(allowed)) == (50, 50, 160)


def test_images_are_charged_all_or_none_until_the_day_ends(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota, shop, now = ImageQuota(connection), caller(images_per_day=10), NOON
    monkeypatch.setattr("time.time", lambda: now)
    first = quota.charge(shop, 6, "a")
    assert (first.allowed, first.left, first.resets_in_s) == (True, 4, 43_200)
    refused = quota.charge(shop, 5, "b")
    assert (refused.allowed, refused.left) == (False, 4)
    quota.give_back(refused, "b")  # it gives nothing back
    assert quota.charge(shop, 4, "c").allowed
    assert not quota.charge(shop, 1, "d").allowed
    now += 43_199
    last = quota.charge(shop, 1, "e")
    assert (last.allowed, last.left, last.resets_in_s) == (False, 0, 1)
    now += 1
    assert quota.charge(shop, 10, "f").allowed


def test_images_are_given_back_to_the_day_of_their_charge(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota, shop, now = ImageQuota(connection), caller(images_per_day=10), NOON
    monkeypatch.setattr("time.time", lambda: now)
    charge = quota.charge(shop, 6, "a")
    assert not quota.charge(shop, 5, "b").allowed
    quota.give_back(charge, "a")
    quota.give_back(charge, "a")  # it is given back already
    assert quota.charge(shop, 4, "c").left == 6
    late = quota.charge(shop, 1, "late")
    now += 86_400
    assert quota.charge(shop, 7, "d").left == 3
    quota.give_back(late, "late")
    assert quota.charge(shop, 3, "e").allowed
    assert not quota.charge(shop, 1, "f").allowed


def test_the_images_of_equal_requests_are_charged_once_whichever_is_accepted(
    connection: Connection, client: redis.Redis, namespace: str
) -> None:
    quota, shop = ImageQuota(connection), caller(images_per_day=10)
    first, second = (quota.charge(shop, 6, "a") for _ in range(2))
    assert (first.allowed, second.allowed) == (True, True)
    quota.confirm(first)
    quota.confirm(second)
    assert quota.used(shop) == 6
    quota.give_back(second, "a")  # it had charged nothing
    assert quota.used(shop) == 6
    quota.give_back(first, "a")  # both were refused
    assert quota.used(shop) == 0

    first, second = (quota.charge(shop, 7, "b") for _ in range(2))
    quota.give_back(first, "b")  # it was refused before the second was accepted
    quota.confirm(second)
    assert quota.used(shop) == 7

    first, second = (quota.charge(shop, 3, "c") for _ in range(2))
    client.hset(job_key(namespace, "c"), "state", "queued")  # the second was accepted
    quota.confirm(second)
    quota.give_back(first, "c")
    assert quota.used(shop) == 10


def test_a_caller_without_a_quota_has_all_images(
    connection: Connection, client: redis.Redis, namespace: str
) -> None:
    quota = ImageQuota(connection)
    for each in (LOOPBACK, caller()):
        charge = quota.charge(each, 1_000_000, "a")
        quota.give_back(charge, "a")
        assert (charge.allowed, charge.left) == (True, None)
    assert list(client.scan_iter(f"{namespace}:*")) == []


def test_a_count_is_deleted_after_its_day(
    connection: Connection, client: redis.Redis, namespace: str
) -> None:
    ImageQuota(connection).charge(caller(images_per_day=10), 3, "job-1")
    name = image_quota_key(namespace, "k", time.strftime("%Y-%m-%d", time.gmtime()))
    mark = image_charge_key(namespace, "k", "job-1")
    assert set(client.scan_iter(f"{namespace}:*")) == {name, mark}
    assert client.get(name) == "3"
    assert 86_400 < client.ttl(name) <= 2 * 86_400
    assert 0 < client.ttl(mark) <= 900


@pytest.mark.parametrize("damage", ["", "nan", "inf", "-5", "0x9", "9" * 40, "é", None])
def test_a_damaged_count_counts_nothing(
    connection: Connection, client: redis.Redis, namespace: str, damage: str | None
) -> None:
    quota, shop = ImageQuota(connection), caller(images_per_day=10)
    quota.charge(shop, 1, "a")
    [name] = client.scan_iter(f"{namespace}:quota:*")
    if damage is None:
        client.delete(name)
        client.rpush(name, "rubbish")
    else:
        client.set(name, damage)
    assert quota.charge(shop, 4, "b").left == 6


def _check_both_limits(url: str, namespace: str = "imagefleet") -> None:
    connection = Connection(Settings.load(redis_url=url, namespace=namespace))
    rates, quota = RequestRates(connection), ImageQuota(connection)
    shop = caller(per_minute=2, images_per_day=2)
    assert [rates.take(shop) > 0 for _ in range(3)] == [False, False, True]
    assert [quota.charge(shop, 1, job).allowed for job in "abc"] == [True, True, False]
    connection.close()


def test_they_are_counted_over_tls(own_redis: LocalRedisServer, tmp_path: Path) -> None:
    context, trusted = make_certificate(tmp_path, "localhost")
    door = RedisProxy(own_redis.url.removeprefix("unix://"), context)
    _check_both_limits(f"rediss://localhost:{door.port}/0?ssl_ca_certs={trusted}")
    door.close()


def test_they_are_counted_behind_sentinels(tmp_path: Path) -> None:
    with SentinelPair(tmp_path) as pair:
        _check_both_limits(pair.url)


def test_a_producer_with_the_documented_rights_may_count_and_others_are_told(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/redis.md").read_text()
    [rights] = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    with TcpServer(tmp_path / "guarded", "--requirepass", "admin's") as server:
        server.client(password="admin's").execute_command(*rights.split())
        url = f"redis://fleet:a-long-password@127.0.0.1:{server.port}/0"
        _check_both_limits(url)
        connection = Connection(Settings.load(redis_url=url, namespace="other"))
        shop = caller(per_minute=2, images_per_day=2)
        for ask in (
            lambda: RequestRates(connection).take(shop),
            lambda: ImageQuota(connection).charge(shop, 1, "a"),
        ):
            with pytest.raises(BrokerUnavailable, match=r"the rights of docs/redis\.md"):
                ask()
        connection.close()


def test_a_redis_that_is_away_is_named(own_redis: LocalRedisServer) -> None:
    connection = Connection(Settings.load(redis_url=own_redis.url))
    rates, quota = RequestRates(connection), ImageQuota(connection)
    shop = caller(per_minute=2, images_per_day=2)
    assert rates.take(shop) == 0
    own_redis.kill()
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        rates.take(shop)
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        quota.charge(shop, 1, "a")
    own_redis.start()
    assert [rates.take(shop) > 0 for _ in range(2)] == [False, True]
