"""The lease keeper on a real Redis: which claims it requeues, and which not."""

import time

import pytest
import redis

from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper

LEASE_S = 60.0


@pytest.fixture
def claims(client: redis.Redis, namespace: str) -> Claims:
    return Claims(
        no_retry_client=client,
        retrying_client=client,
        namespace=namespace,
        worker="w",
        lease_s=LEASE_S,
    )


@pytest.fixture
def keeper(client: redis.Redis, namespace: str, claims: Claims) -> LeaseKeeper:
    claims.acquire_lease()
    return LeaseKeeper(claims, JobRecords(client, namespace, 3600), LEASE_S, lambda: None)


def test_a_worker_that_starts_after_an_outage_gives_the_others_time_to_renew(
    keeper: LeaseKeeper, client: redis.Redis, namespace: str
) -> None:
    client.zadd(f"{namespace}:leases", {"could not renew": time.time() - 1})
    keeper.beat()
    assert client.zscore(f"{namespace}:leases", "could not renew")


def test_an_orphaned_claim_that_a_restart_restored_is_requeued(
    keeper: LeaseKeeper, claims: Claims, client: redis.Redis, namespace: str
) -> None:
    queue = f"{namespace}.q"
    client.lpush(queue, "a")
    [message] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
    kept = client.hgetall(claims.key)
    claims.ack(message.tag)
    client.hset(claims.key, mapping={str(k): v for k, v in kept.items()})
    keeper.beat()
    assert client.lrange(queue, 0, -1) == ["a"]
    assert not client.exists(claims.key)
