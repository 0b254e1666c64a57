"""Claims while very many tenants wait, as anybody can invent them: bounded, and still in turn."""

from collections import Counter

import pytest
import redis

from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.integration.conftest import MakeClaims


@pytest.fixture
def group(namespace: str) -> list[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(f"{namespace}.q",))]


def _claim_and_ack(claims: Claims, groups: list[QueueGroup], batches: int) -> Counter[str]:
    """Claim and acknowledge batches of 8 images, and count their messages by text."""
    served: Counter[str] = Counter()
    for _ in range(batches):
        for message in claims.claim(groups, 8):
            served[message.message] += 1
            claims.ack(message.tag)
    return served


def _invent_tenants(
    client: redis.Redis, namespace: str, queue: str, tenants: int, messages: int
) -> None:
    names = [f"{namespace}.{queue}@t{number}" for number in range(tenants)]
    with client.pipeline(transaction=False) as pipe:
        pipe.sadd(known_queues_key(namespace), *names)
        for name in names:
            pipe.lpush(list_key(name, 3), *[f"{name.rpartition('@')[2]}"] * messages)
        pipe.execute()


def _commands(client: redis.Redis) -> Counter[str]:
    """Return how often each command was called, also by scripts."""
    stats = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})


@pytest.mark.parametrize("queue", ["q", "unserved"])
def test_a_claim_reads_a_bounded_part_of_very_many_queues(
    make_claims: MakeClaims,
    client: redis.Redis,
    group: list[QueueGroup],
    namespace: str,
    queue: str,
) -> None:
    _invent_tenants(client, namespace, queue, 5_000, 1)
    claims = make_claims("w")
    for _ in range(3):
        before = _commands(client)
        claims.claim(group, 8)
        called = _commands(client) - before
        assert not called["smembers"]
        assert called.total() < 1_000, called


def test_very_many_tenants_get_equal_shares_in_the_long_run(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _invent_tenants(client, namespace, "q", 800, 6)
    claims = make_claims("w")
    served = _claim_and_ack(claims, group, 300)
    assert served.total() == 2_400
    assert len(served) > 760, "each is served before some are served often"
    assert max(served.values()) <= 5
    served += _claim_and_ack(claims, group, 1_000)
    assert set(served.values()) == {6}
    assert not client.exists(known_queues_key(namespace))


def test_the_accounts_of_very_many_tenants_stay_small(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _invent_tenants(client, namespace, "q", 3_000, 1)
    claims = make_claims("w")
    assert len(_claim_and_ack(claims, group, 450)) == 3_000
    assert len(claims._accounts) < 100_000
