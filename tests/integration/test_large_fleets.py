"""In a large fleet the workers share what each worker of a small one does by itself."""

import random
import time
from typing import Any

import pytest
import redis

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import lease_lengths_key, leases_key
from imagefleet.worker.jobs.image_sweeper import sweep_pause_s
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from imagefleet.worker.webhooks.delivery_loop import poll_s
from tests.integration.conftest import MakeClaims


@pytest.fixture
def group(namespace: str) -> list[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(f"{namespace}.q",))]


def _add_workers(client: redis.Redis, namespace: str, count: int) -> None:
    expiry = time.time() + 600
    client.zadd(leases_key(namespace), {f"other-{number}": expiry for number in range(count)})


def test_a_worker_of_a_large_fleet_pauses_after_a_claim_that_brought_nothing(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    group: list[QueueGroup],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _add_workers(client, namespace, 100)
    claims = make_claims("w")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert claims.claim(group, 1) == []
    client.lpush(group[0].queues[0], "a")
    assert claims.claim(group, 1) == []
    others = [QueueGroup(name="64x128", queues=(f"{namespace}.other",))]
    client.lpush(others[0].queues[0], "b")
    assert [each.message for each in claims.claim(others, 1)] == ["b"]
    monkeypatch.setattr(time, "monotonic", lambda: now + 1)
    assert [each.message for each in claims.claim(group, 1)] == ["a"]
    client.lpush(group[0].queues[0], "c")
    assert [each.message for each in claims.claim(group, 1)] == ["c"]


def test_a_worker_of_a_small_fleet_does_not_pause(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    group: list[QueueGroup],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _add_workers(client, namespace, 7)
    claims = make_claims("w")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert claims.claim(group, 1) == []
    client.lpush(group[0].queues[0], "a")
    assert [each.message for each in claims.claim(group, 1)] == ["a"]


@pytest.mark.parametrize(("drawn", "is_reclaimed"), [(0.04, True), (0.06, False)])
def test_of_a_hundred_workers_five_on_average_reclaim_in_a_heartbeat(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    drawn: float,
    is_reclaimed: bool,
) -> None:
    claims = make_claims("w")
    _add_workers(client, namespace, 98)
    client.zadd(leases_key(namespace), {"dead": time.time() - 1})
    keeper = LeaseKeeper(claims, JobRecords(client, namespace, 3600), 60, lambda: None)
    keeper._reclaim_from = 0.0
    monkeypatch.setattr(random, "random", lambda: drawn)
    keeper.heartbeat()
    assert (client.zscore(leases_key(namespace), "dead") is None) == is_reclaimed


def test_workers_look_for_callbacks_once_a_second_all_together() -> None:
    assert [poll_s(workers) for workers in (0, 1, 8, 1000)] == [1.0, 1.0, 8.0, 15.0]
    assert [poll_s(workers, lanes=8) for workers in (0, 1, 8, 1000)] == [1.0, 1.0, 8.0, 120.0]


def test_workers_look_for_expired_images_less_often_the_more_they_are() -> None:
    assert [sweep_pause_s(workers) for workers in (0, 1, 8, 1000)] == [5.0, 5.0, 20.0, 60.0]
    assert [sweep_pause_s(workers, lanes=8) for workers in (0, 1, 8, 1000)] == [5, 5, 20, 480]


@pytest.fixture
def lane_claims(client: redis.Redis, namespace: str) -> Claims:
    """The claims of a worker of a large fleet in one of two lanes."""
    claims = Claims(
        no_retry_client=client,
        retrying_client=client,
        namespace=namespace,
        worker="w",
        lease_s=60,
        lane=1,
        lanes=2,
    )
    claims.lease.acquire()
    _add_workers(client, namespace, 100)
    return claims


def _lease_s(client: redis.Redis, namespace: str) -> float:
    """Return the seconds until the lease of the worker expires, to the nearest ten."""
    return round((client.zscore(leases_key(namespace), "w") or 0) - time.time(), -1)


def test_a_lease_rests_where_a_worker_of_a_large_fleet_holds_nothing(
    lane_claims: Claims,
    client: redis.Redis,
    namespace: str,
    group: list[QueueGroup],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = LeaseKeeper(lane_claims, JobRecords(client, namespace, 3600), 60, lambda: None)
    assert [keeper.heartbeat() for _ in range(3)] == [True, True, False]
    assert _lease_s(client, namespace) == 480
    assert lane_claims.claim([QueueGroup(name="64x128", queues=(f"{namespace}.other",))], 1) == []
    assert not keeper.heartbeat()
    client.lpush(group[0].queues[0], "a")
    [claimed] = lane_claims.claim(group, 1)
    assert _lease_s(client, namespace) == 60
    assert keeper.heartbeat()
    assert _lease_s(client, namespace) == 60
    lane_claims.ack(claimed.tag)
    assert [keeper.heartbeat() for _ in range(3)] == [True, True, False]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 421)
    assert keeper.heartbeat()


def test_a_lease_rests_no_more_once_a_claim_has_failed(
    lane_claims: Claims, client: redis.Redis, namespace: str, group: list[QueueGroup]
) -> None:
    keeper = LeaseKeeper(lane_claims, JobRecords(client, namespace, 3600), 60, lambda: None)
    assert [keeper.heartbeat() for _ in range(3)] == [True, True, False]
    client.zrem(leases_key(namespace), "w")
    with pytest.raises(LeaseLost):
        lane_claims.claim(group, 1)
    assert keeper.heartbeat()
    assert _lease_s(client, namespace) == 60


def test_a_worker_whose_lease_rested_through_an_outage_leaves_living_workers_their_messages(
    lane_claims: Claims,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = LeaseKeeper(lane_claims, JobRecords(client, namespace, 3600), 60, lambda: None)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert [keeper.heartbeat() for _ in range(3)] == [True, True, False]
    # Redis was away while the lease rested. Nobody could renew, and this worker did not notice.
    client.zadd(leases_key(namespace), {"living": time.time() - 1})
    now += 421
    assert keeper.heartbeat()
    assert client.zscore(leases_key(namespace), "living") is not None
    now += 29
    assert keeper.heartbeat()  # its lease does not rest while somebody may be dead
    assert client.zscore(leases_key(namespace), "living") is not None
    now += 2
    assert keeper.heartbeat()
    assert client.zscore(leases_key(namespace), "living") is None
    assert [keeper.heartbeat() for _ in range(2)] == [True, False]


def test_a_lease_does_not_rest_while_another_is_about_to_expire(
    lane_claims: Claims, client: redis.Redis, namespace: str
) -> None:
    client.zadd(leases_key(namespace), {"late": time.time() + 25})
    keeper = LeaseKeeper(lane_claims, JobRecords(client, namespace, 3600), 60, lambda: None)
    assert [keeper.heartbeat() for _ in range(3)] == [True, True, True]
    assert _lease_s(client, namespace) == 60
    client.zadd(leases_key(namespace), {"late": time.time() + 60})
    assert [keeper.heartbeat() for _ in range(2)] == [True, False]


def test_a_resting_lease_of_a_worker_with_longer_leases_is_not_shortened(
    lane_claims: Claims, client: redis.Redis, namespace: str
) -> None:
    client.hset(lease_lengths_key(namespace), "longer", "300")
    client.zadd(leases_key(namespace), {"longer": time.time() + 8 * 300})
    lane_claims.lease.reclaim_expired()
    assert (client.zscore(leases_key(namespace), "longer") or 0) - time.time() > 2000


def test_a_lease_rests_not_if_a_claim_ended_while_it_was_renewed(
    lane_claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lane_claims.lease
    assert lease.renew(may_rest=True)
    renew = lease._renew_lease

    def renew_and_claim(**call: Any) -> Any:
        answer = renew(**call)
        lease.end_rest(time.monotonic())  # of a claim that was answered first
        return answer

    monkeypatch.setattr(lease, "_renew_lease", renew_and_claim)
    assert lease.renew(may_rest=True)
    assert not lease.rests
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert lease.may_have_expired()
