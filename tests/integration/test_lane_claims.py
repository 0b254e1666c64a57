"""One worker claims from every lane of a real cluster, in turn and fairly, also if one is down."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from imagefleet.producer.connection.lane_records import LaneRecords
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.tenants import Tenants
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lane_claims import LaneClaims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from tests.support.processes import until
from tests.support.redis_cluster import RedisCluster

LANES = 4
REQUEST = JobRequest.parse({"prompt": "a"})
NO_LIMIT = 1_000_000


@pytest.fixture
def lanes(cluster: RedisCluster, namespace: str) -> Iterator[Lanes]:
    lanes = connect_lanes(cluster.url, namespace, lanes=LANES, retries=0)
    yield lanes
    lanes.close()


def _claims(lanes: Lanes, worker: str = "w", lease_s: float = 60) -> LaneClaims:
    """Return the claims of a worker, which has its leases."""

    def make(lane: Lane) -> Claims:
        claims = Claims(
            no_retry_client=lane.client,
            retrying_client=lane.client,
            namespace=lane.namespace,
            worker=worker,
            lease_s=lease_s,
            lane=lane.number,
            lanes=len(lanes),
        )
        claims.lease.acquire()
        return claims

    return LaneClaims([make(lane) for lane in lanes], [lane.namespace for lane in lanes])


def _group(lanes: Lanes, name: str = "q") -> QueueGroup:
    return QueueGroup(name=name, queues=(f"{lanes.first.namespace}.{name}",))


def _push(lane: Lane, queue: str, *messages: str, tenant: str = "", priority: int = 0) -> None:
    name = f"{lane.namespace}.{queue}" + (f"@{tenant}" if tenant else "")
    if tenant:
        lane.client.sadd(known_queues_key(lane.namespace), name)
    lane.client.lpush(list_key(name, priority), *messages)


def _claim(
    claims: LaneClaims, groups: Sequence[QueueGroup], wanted: int, suspect_from: int = NO_LIMIT
) -> list[Claimed]:
    return claims.claim(groups, wanted, max_messages=NO_LIMIT, suspect_from=suspect_from)


def _texts(claimed: Sequence[Claimed]) -> list[str]:
    return [message.message for message in claimed]


def _add_to(found: list[Claimed], more: Sequence[Claimed]) -> int:
    found += more
    return len(found)


def test_a_batch_is_filled_from_several_lanes_and_the_next_begins_behind_them(lanes: Lanes) -> None:
    for lane in lanes:
        _push(lane, "q", *[str(lane.number)] * 3)
    claims = _claims(lanes)
    batches = [_texts(_claim(claims, [_group(lanes)], 4)) for _ in range(4)]
    assert batches == [list("0001"), list("2223"), list("1133"), []]


def test_tags_of_several_lanes_differ_and_tell_their_lane(lanes: Lanes) -> None:
    for lane in lanes:
        _push(lane, "q", *[str(lane.number)] * 5)
    claims = _claims(lanes)
    claimed = [message for _ in range(5) for message in _claim(claims, [_group(lanes)], 4)]
    assert len({message.tag for message in claimed}) == 20
    assert claims.held_tags() == {message.tag for message in claimed}
    for message in claimed:
        assert claims.of(message.tag) is claims.parts[int(message.message)]
        assert claims.of(message.tag).ack(message.tag)
    assert not claims.held_tags()


def test_the_first_message_decides_the_compile_key_of_all_lanes(lanes: Lanes) -> None:
    groups = [_group(lanes, name) for name in ("x", "y")]
    _push(lanes[0], "x", "x0", tenant="gold", priority=3)
    for lane in list(lanes)[1:]:
        _push(lane, "y", f"y{lane.number}")
        _push(lane, "x", f"x{lane.number}", tenant="iron", priority=6)
    claims = _claims(lanes)
    assert _texts(_claim(claims, groups, 8)) == ["x0", "x1", "x2", "x3"]
    assert _texts(_claim(claims, groups, 8)) == ["y1", "y2", "y3"]


def test_a_suspect_of_any_lane_is_claimed_alone(lanes: Lanes) -> None:
    _push(lanes[0], "q", "well")
    _push(lanes[1], "q", "suspect")
    _push(lanes[2], "q", "other")
    dead = _claims(lanes, "dead")
    assert len(_claim(dead, [_group(lanes)], 8)) == 3
    claims = _claims(lanes)
    dead.parts[0].requeue(*dead.parts[0].held_tags())
    for part in dead.parts[1:2]:
        part.requeue(*part.held_tags(), counted=True)
    dead.parts[2].requeue(*dead.parts[2].held_tags())
    first = _claim(claims, [_group(lanes)], 8, suspect_from=2)
    assert _texts(first) == ["well", "other"]
    for message in first:
        claims.of(message.tag).ack(message.tag)
    _push(lanes[3], "q", "later")
    alone = _claim(claims, [_group(lanes)], 1, suspect_from=2)
    assert _texts(alone) == ["later"]  # the circle goes on behind the lane that was served last
    assert _claim(claims, [_group(lanes)], 8, suspect_from=2) == []  # it holds another message
    claims.of(alone[0].tag).ack(alone[0].tag)
    assert _texts(_claim(claims, [_group(lanes)], 8, suspect_from=2)) == ["suspect"]


def test_jobs_of_a_dead_worker_return_in_every_lane_with_a_lease_keeper_each(lanes: Lanes) -> None:
    for lane in lanes:
        _push(lane, "q", str(lane.number))
    dead = _claims(lanes, "dead", lease_s=1)
    assert len(_claim(dead, [_group(lanes)], 8)) == LANES
    claims = _claims(lanes, lease_s=2)
    keepers = [
        LeaseKeeper(part, JobRecords(lane.client, lane.namespace, 3600), 2, lambda: None)
        for part, lane in zip(claims.parts, lanes, strict=True)
    ]
    for keeper in keepers:
        keeper.start()
    found: list[Claimed] = []
    until(lambda: _add_to(found, _claim(claims, [_group(lanes)], 8)) == LANES)
    for keeper in keepers:
        keeper.stop()
    assert sorted(_texts(found)) == ["0", "1", "2", "3"]
    assert {message.deliveries for message in found} == {2}


def test_a_lane_that_is_full_or_down_stops_no_other(tmp_path: Path, namespace: str) -> None:
    with RedisCluster(tmp_path) as cluster:
        lanes = connect_lanes(cluster.url, namespace, lanes=LANES, retries=0)
        for lane in lanes:
            _push(lane, "q", *["a"] * 4)
        claims = _claims(lanes)
        records = LaneRecords(lanes, 3600)
        master = cluster.master_of(lanes.first.namespace)
        left = [each for each in lanes if cluster.master_of(each.namespace).port != master.port]
        assert 0 < len(left) < LANES
        Tenants(lanes).set_limit("*", 1_000)
        master.client().config_set("maxmemory", 1)
        assert _refused_ids(records, lanes, redis.OutOfMemoryError) == set(range(LANES)) - {
            lane.number for lane in left
        }
        # A full server still gives out what waits there.
        first = _claim(claims, [_group(lanes)], 2 * LANES)
        assert len(first) == 2 * LANES
        cluster.kill_master_of(lanes.first.namespace)
        assert _refused_ids(records, lanes, redis.ConnectionError) == set(range(LANES)) - {
            lane.number for lane in left
        }
        claims = LaneClaims(claims.parts, [lane.namespace for lane in lanes])
        taken = sum(
            claims.number_of(message.tag) in {lane.number for lane in left} for message in first
        )
        assert len(_claim(claims, [_group(lanes)], 100)) == 4 * len(left) - taken
        assert _claim(claims, [_group(lanes)], 100) == []
        alone = LaneClaims.single(claims.parts[0])
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                _claim(alone, [_group(lanes)], 8)
        both = LaneClaims([claims.parts[0]] * 2, [lanes.first.namespace] * 2)
        for _ in range(2):  # the second call finds both lanes paused
            with pytest.raises(redis.ConnectionError):
                _claim(both, [_group(lanes)], 8)
        lanes.close()


def _refused_ids(records: LaneRecords, lanes: Lanes, refusal: type[redis.RedisError]) -> set[int]:
    """Submit jobs to all lanes, and return the numbers of those that refuse them."""
    refused = set[int]()
    for number in range(32):
        try:
            records.submit([(f"{refusal.__name__}-{number}", REQUEST)], offers={})
        except refusal:
            refused.add(lanes.of(f"{refusal.__name__}-{number}").number)
    return refused
