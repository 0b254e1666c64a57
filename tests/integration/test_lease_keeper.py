"""The lease keeper on a real Redis: which claims it requeues, and which not."""

import random
import time
from types import SimpleNamespace
from typing import Any

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
    claims.lease.acquire()
    return LeaseKeeper(claims, JobRecords(client, namespace, 3600), LEASE_S, lambda: None)


def test_a_worker_that_starts_after_an_outage_gives_the_others_time_to_renew(
    keeper: LeaseKeeper, client: redis.Redis, namespace: str
) -> None:
    client.zadd(f"{namespace}:leases", {"could not renew": time.time() - 1})
    keeper.heartbeat()
    assert client.zscore(f"{namespace}:leases", "could not renew")


@pytest.mark.parametrize("emptied", [True, False])
def test_redis_that_was_emptied_since_the_worker_joined_is_told_everything_again(
    claims: Claims, client: redis.Redis, namespace: str, *, emptied: bool
) -> None:
    told: list[bool] = []
    keeper = LeaseKeeper(
        claims, JobRecords(client, namespace, 3600), LEASE_S, lambda: told.append(True)
    )
    claims.lease.acquire()
    if emptied:
        client.delete(*client.keys(f"{namespace}*"))
    keeper.start()
    keeper.stop()
    assert told == [True] * emptied
    assert client.zscore(f"{namespace}:leases", "w")


def test_an_orphaned_claim_that_a_restart_restored_is_requeued(
    keeper: LeaseKeeper, claims: Claims, client: redis.Redis, namespace: str
) -> None:
    queue = f"{namespace}.q"
    client.lpush(queue, "a")
    [message] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
    kept = client.hgetall(claims.key)
    claims.ack(message.tag)
    client.hset(claims.key, mapping={str(k): v for k, v in kept.items()})
    keeper.heartbeat()
    assert client.lrange(queue, 0, -1) == ["a"]
    assert not client.exists(claims.key)


def test_a_heartbeat_of_a_large_fleet_is_one_call(
    keeper: LeaseKeeper,
    claims: Claims,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.zadd(f"{namespace}:leases", {f"other-{number}": 4e9 for number in range(99)})
    queue = f"{namespace}.q"
    client.lpush(queue, "a")
    claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
    monkeypatch.setattr(random, "random", lambda: 0.5)  # other workers search at this heartbeat
    keeper.heartbeat()
    assert _reads_of_a_beat(keeper, client) == 2  # one of them asks for this number
    assert claims.lease.workers == 100


def test_a_renewal_says_whether_there_is_anything_to_recover(
    keeper: LeaseKeeper,
    claims: Claims,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leases, later, queue = f"{namespace}:leases", f"{namespace}:later", f"{namespace}.q"
    keeper._reclaim_from = 0.0
    client.zadd(leases, {"b": time.time() + LEASE_S, "c": time.time() + LEASE_S})
    client.zadd(later, {f"{queue}\0a": time.time() + LEASE_S})
    monkeypatch.setattr(random, "random", lambda: 0.5)  # another of the three sweeps the queues
    keeper.heartbeat()
    assert _reads_of_a_beat(keeper, client) == 2  # one of them asks for this number
    assert not claims.lease.any_expired
    assert not claims.lease.any_due
    client.zadd(leases, {"b": time.time() - 1})
    client.zadd(later, {f"{queue}\0a": time.time() - 1})
    keeper.heartbeat()
    assert client.zscore(leases, "b") is None
    assert client.lrange(queue, 0, -1) == ["a"]


def test_a_renewal_notices_leases_that_end_too_late_to_be_right(
    keeper: LeaseKeeper,
    claims: Claims,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper._reclaim_from = 0.0
    leases, hour = f"{namespace}:leases", 3600.0
    client.zadd(leases, {"before the clock was set back": time.time() + 3 * hour, "c": 4e9})
    monkeypatch.setattr(random, "random", lambda: 0.5)
    keeper.heartbeat()
    assert claims.lease.any_expired
    client.zrem(leases, "c")
    assert client.zcount(leases, time.time() + 2 * hour, "+inf") == 0
    assert client.zscore(leases, "before the clock was set back")


class _TwoHeartbeats:
    """Takes the place of the event that stops a keeper. Only the second pause takes its time."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        if len(self.pauses) == 2:
            time.sleep(seconds)
        return len(self.pauses) == 3


def test_jobs_of_a_dead_worker_do_not_wait_for_the_next_heartbeat(
    keeper: LeaseKeeper, client: redis.Redis, namespace: str
) -> None:
    leases, queue = f"{namespace}:leases", f"{namespace}.q"
    stopped: Any = _TwoHeartbeats()
    keeper._stopped, keeper._reclaim_from = stopped, 0.0
    now, _ = client.time()
    client.zadd(leases, {"dead": now + 2})
    client.hset(f"{namespace}:claims:dead", "1", f"{queue}\0a")
    keeper._loop()
    heartbeat_s, until_expiry_s, rest_s = stopped.pauses
    assert heartbeat_s == LEASE_S / 4
    assert 0 < until_expiry_s <= 2.05
    assert rest_s == heartbeat_s - until_expiry_s
    assert client.zscore(leases, "dead") is None
    assert client.lrange(queue, 0, -1) == ["a"]


def test_living_workers_are_not_watched(
    keeper: LeaseKeeper, client: redis.Redis, namespace: str
) -> None:
    now, _ = client.time()
    client.zadd(f"{namespace}:leases", {"alive": now + LEASE_S})
    keeper.heartbeat()
    assert keeper._next_expiry_s() is None


@pytest.mark.parametrize("damaged", ["later", "workers"])
def test_a_heartbeat_outlives_keys_that_hold_something_else(
    keeper: LeaseKeeper, claims: Claims, client: redis.Redis, namespace: str, damaged: str
) -> None:
    client.set(f"{namespace}:{damaged}", "another type")
    keeper.heartbeat()
    assert client.zscore(f"{namespace}:leases", "w")
    assert not claims.lease.any_due


def test_very_many_due_messages_do_not_delay_the_renewal_of_the_lease(
    claims: Claims, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow Redis takes 62 ms for each call of the script, by a clock of the test's own."""
    clock = [1000.0]
    monkeypatch.setattr(
        "imagefleet.shared.jobs.delayed_messages.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    records, queue, later = JobRecords(client, namespace, 3600), f"{namespace}.q", "later"
    messages: Any = records.requeue_due.__self__  # type: ignore[attr-defined]
    script = messages._script

    def slow_script(**call: Any) -> object:
        clock[0] += 1 / 16
        return script(**call)

    messages._script = slow_script
    due = {f"{queue}\0{number:05}": number for number in range(10_000)}
    client.zadd(f"{namespace}:{later}", due)
    claims.lease.acquire()
    keeper = LeaseKeeper(claims, records, 4.0, lambda: None)
    beats = 0
    while client.zcard(f"{namespace}:{later}"):
        began = clock[0]
        keeper.heartbeat()
        assert clock[0] - began <= 4.0 / 4
        beats += 1
        assert client.llen(queue) == 10_000 - client.zcard(f"{namespace}:{later}")
        if beats == 1:
            assert client.rpop(queue) == "00000"
            client.rpush(queue, "00000")
    assert beats == 10


def _reads_of_a_beat(keeper: LeaseKeeper, client: redis.Redis) -> int:
    """Let the keeper beat, and return how many requests of clients the server read meanwhile."""
    before = int(client.info("stats")["total_reads_processed"])
    keeper.heartbeat()
    return int(client.info("stats")["total_reads_processed"]) - before


def test_a_key_of_another_type_in_place_of_the_claims_costs_no_lease(
    keeper: LeaseKeeper, claims: Claims, client: redis.Redis, namespace: str
) -> None:
    client.set(claims.key, "no hash")
    keeper.heartbeat()
    assert claims.lease.tags_at_renewal is None
    assert client.zscore(f"{namespace}:leases", "w")
