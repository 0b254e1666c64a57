"""Tenants and priorities are served fairly, on one server and across the lanes of a cluster."""

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.jobs.tenants import Tenants
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lane_claims import LaneClaims
from tests.support.redis_cluster import RedisCluster


class Fleet:
    """The queues of a fleet, over whose lanes messages are spread, and its only worker."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.tolerance = len(lanes) if len(lanes) > 1 else 0
        """A turn may be open in each lane."""
        self._places = count()
        parts = [self._claims(lane) for lane in lanes]
        self._worker = LaneClaims(parts, [lane.namespace for lane in lanes])

    def _claims(self, lane: Lane) -> Claims:
        claims = Claims(
            no_retry_client=lane.client,
            retrying_client=lane.client,
            namespace=lane.namespace,
            worker="w",
            lease_s=60,
            lane=lane.number,
            lanes=len(self.lanes),
        )
        claims.lease.acquire()
        return claims

    def push(
        self, text: str, messages: int, *, tenant: str = "", queue: str = "q", priority: int = 0
    ) -> None:
        """Let messages wait, as many in each lane as in another."""
        places = Counter(next(self._places) % len(self.lanes) for _ in range(messages))
        for number, here in places.items():
            lane = self.lanes[number]
            name = f"{lane.namespace}.{queue}" + (f"@{tenant}" if tenant else "")
            if tenant:
                lane.client.sadd(known_queues_key(lane.namespace), name)
            lane.client.lpush(list_key(name, priority), *[text] * here)

    def serve(self, batches: int, wanted: int, *queues: str) -> Counter[str]:
        """Claim and acknowledge some batches, and count their messages by text."""
        own = self.lanes.first.namespace
        groups = [QueueGroup(name=queue, queues=(f"{own}.{queue}",)) for queue in queues or ("q",)]
        served: Counter[str] = Counter()
        for _ in range(batches):
            for message in self._worker.claim(groups, wanted):
                served[message.message] += 1
                assert self._worker.of(message.tag).ack(message.tag)
        return served

    def agrees(self, served: Counter[str], **wanted: int) -> bool:
        """Return whether so many messages were served."""
        return served.keys() == wanted.keys() and all(
            abs(served[text] - number) <= self.tolerance for text, number in wanted.items()
        )


@pytest.fixture(params=[1, 4], ids=["one server", "four lanes"])
def fleet(
    request: pytest.FixtureRequest, redis_server: LocalRedisServer, namespace: str
) -> Iterator[Fleet]:
    is_cluster = request.param > 1
    cluster: RedisCluster | None = request.getfixturevalue("cluster") if is_cluster else None
    url = redis_server.url if cluster is None else cluster.url
    lanes = connect_lanes(url, namespace, lanes=request.param, retries=0)
    yield Fleet(lanes)
    lanes.close()


@pytest.mark.parametrize(("batches", "want"), [(48, 1), (24, 3), (12, 8)])
def test_tenants_get_equal_shares_for_any_batch_size(fleet: Fleet, batches: int, want: int) -> None:
    for tenant in "abc":
        fleet.push(tenant, 160, tenant=tenant)
    served = fleet.serve(batches, want)
    share = batches * want // 3
    assert fleet.agrees(served, a=share, b=share, c=share)
    assert served.total() == batches * want


def test_a_flood_of_one_tenant_does_not_delay_another(fleet: Fleet) -> None:
    fleet.push("flood", 10_000, tenant="flood")
    assert fleet.serve(10, 8) == {"flood": 80}
    fleet.push("small", 10, tenant="small")
    assert fleet.serve(len(fleet.lanes) + 2, 8)["small"] == 10


def test_jobs_without_a_tenant_count_as_one_tenant(fleet: Fleet) -> None:
    fleet.push("plain", 80)
    fleet.push("gold", 80, tenant="gold")
    assert fleet.agrees(fleet.serve(8, 8), plain=32, gold=32)


def test_a_tenant_gets_images_by_its_weight(fleet: Fleet) -> None:
    Tenants(fleet.lanes).set_weight("gold", 3)
    for tenant in ("gold", "free"):
        fleet.push(tenant, 200, tenant=tenant)
    assert fleet.serve(20, 8) == {"gold": 120, "free": 40}


def test_a_tenant_gains_nothing_by_using_many_queues(fleet: Fleet) -> None:
    for queue in "xyz":
        fleet.push("many", 100, tenant="many", queue=queue)
    fleet.push("one", 100, tenant="one", queue="x")
    assert fleet.agrees(fleet.serve(60, 1, *"xyz"), many=30, one=30)


def test_a_tenant_is_charged_by_image_and_not_by_job(fleet: Fleet) -> None:
    large, small = '{"images":4}', '{"images":1}'
    fleet.push(large, 100, tenant="large")
    fleet.push(small, 100, tenant="small")
    served = fleet.serve(20, 4)
    assert abs(4 * served[large] - served[small]) <= 4 * fleet.tolerance
    assert served[large] >= 10 - fleet.tolerance


def test_a_tenant_back_from_a_pause_has_no_credit(fleet: Fleet) -> None:
    fleet.push("busy", 200, tenant="busy")
    fleet.push("idle", len(fleet.lanes), tenant="idle")
    fleet.serve(10, 8)
    fleet.push("idle", 200, tenant="idle")
    assert fleet.agrees(fleet.serve(8, 8), busy=32, idle=32)


def test_urgent_jobs_wait_until_each_lane_was_asked_once(fleet: Fleet) -> None:
    fleet.push("patient", 200, priority=9)
    fleet.serve(1, 8)
    fleet.push("urgent", len(fleet.lanes))
    assert fleet.serve(len(fleet.lanes), 8)["urgent"] == len(fleet.lanes)


def test_turns_inside_a_level_are_kept_while_higher_levels_are_served(fleet: Fleet) -> None:
    for tenant in "ab":
        fleet.push(tenant, 40, tenant=tenant, priority=3)
    served: Counter[str] = Counter()
    for _ in range(20):
        fleet.push("urgent", 1, tenant="urgent")
        served += fleet.serve(2, 1)
    assert fleet.agrees(served, urgent=20, a=10, b=10)
