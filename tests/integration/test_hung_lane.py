"""One of several lanes hangs, is down, or was emptied; the others go on."""

import logging
import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis
from redis import ConnectionPool

from imagefleet.shared.jobs import waiting_elsewhere
from imagefleet.shared.jobs.fleet_status import FleetReader
from imagefleet.shared.jobs.lane_copies import restore_copies
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import (
    known_queues_key,
    leases_key,
    limits_key,
    weights_key,
)
from imagefleet.shared.jobs.tenants import Tenants
from imagefleet.shared.jobs.waiting_elsewhere import WaitingElsewhere
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues import lane_claims
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lane_claims import LaneClaims
from tests.support.hanging import HangingServer

HUNG, ANSWERING = 0, 1


@pytest.fixture
def hanging() -> Iterator[HangingServer]:
    with HangingServer("127.0.0.1") as server:
        yield server


@pytest.fixture
def lanes(hanging: HangingServer, client: redis.Redis, namespace: str) -> Lanes:
    hung = connect(f"redis://127.0.0.1:{hanging.port}/0", retries=RETRY_FOREVER)
    clients = {HUNG: hung, ANSWERING: client}
    return Lanes(
        [
            Lane(number=number, namespace=f"{namespace}-{number}", client=clients[number])
            for number in (HUNG, ANSWERING)
        ]
    )


def _claims(lane: Lane, lanes: int) -> Claims:
    return Claims(
        no_retry_client=lane.client,
        retrying_client=lane.client,
        namespace=lane.namespace,
        worker="w",
        lease_s=60,
        lane=lane.number,
        lanes=lanes,
    )


def _claim_one(lane: Lane, claims: Claims) -> Claimed:
    claims.lease.acquire()
    queue = f"{lane.namespace}.default.native"
    lane.client.lpush(list_key(queue, 0), "message")
    [claimed] = claims.claim([QueueGroup(name="native", queues=(queue,))], 1)
    return claimed


def test_messages_of_other_lanes_are_requeued_and_their_leases_released(
    client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    down = connect("redis://127.0.0.1:1/0", retries=0)
    own = [
        Lane(number=number, namespace=f"{namespace}-{number}", client=server)
        for number, server in enumerate((down, client))
    ]
    claims = LaneClaims([_claims(lane, 2) for lane in own], [lane.namespace for lane in own])
    lane, part = own[1], claims.parts[1]
    claimed = _claim_one(lane, part)
    assert claims.requeue("2.1", claimed.tag) == 1
    assert lane.client.llen(claimed.list_key) == 1
    assert "lane 0 does not answer" in caplog.text
    assert (claims.other_lanes_answer(), claims.may_end(claimed.tag)) == (True, False)
    part.claim([QueueGroup(name="native", queues=(f"{lane.namespace}.default.native",))], 1)
    assert claims.release_all() == 1
    assert not lane.client.exists(leases_key(lane.namespace))


def test_a_lane_that_hangs_is_not_waited_for(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lane_claims, "REQUEUE_S", 0.1)
    claims = LaneClaims([_claims(lane, 2) for lane in lanes], [lane.namespace for lane in lanes])
    assert claims.requeue("2.1") == 0
    assert "lane 0 has not answered within 0.1 s: its messages are requeued later" in caplog.text


def test_a_lane_that_failed_is_left_out_until_its_lease_is_renewed(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_claims, "_MIN_PAUSE_S", 0.0)
    claims = LaneClaims([_claims(lane, 2) for lane in lanes], [lane.namespace for lane in lanes])
    claims.parts[ANSWERING].lease.acquire()
    lanes[ANSWERING].client.set(claims.parts[ANSWERING].key, "no hash")
    with claims.pausing(ANSWERING):
        claims.parts[ANSWERING].find("1.1")
    assert claims.is_paused(ANSWERING)
    claims.parts[ANSWERING].lease.renew()
    assert not claims.is_paused(ANSWERING)


def test_what_a_lane_that_is_away_holds_keeps_no_suspect_of_another_waiting(
    client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [Lane(number=n, namespace=f"{namespace}-{n}", client=client) for n in range(2)]
    claims = LaneClaims([_claims(lane, 2) for lane in own], [lane.namespace for lane in own])
    held = _claim_one(own[0], claims.parts[0])
    suspect = _claim_one(own[1], claims.parts[1])
    claims.parts[1].requeue(suspect.tag, counted=True)
    group = [QueueGroup(name="native", queues=(f"{own[0].namespace}.default.native",))]
    assert claims.claim(group, 1, suspect_from=2) == []
    claims.parts[0].lease.end_rest(time.monotonic() - 61)  # as if it were not renewed since
    assert claims.is_away(held.tag)
    [found] = claims.claim(group, 1, suspect_from=2)
    assert (found.deliveries, claims.is_away(found.tag)) == (2, False)


def test_a_lasting_error_of_a_lane_is_called_what_it_is(
    client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = [Lane(number=n, namespace=f"{namespace}-{n}", client=client) for n in range(2)]
    claims = LaneClaims([_claims(lane, 2) for lane in own], [lane.namespace for lane in own])
    client.set(leases_key(own[0].namespace), "no sorted set")
    claimed = _claim_one(own[1], claims.parts[1])
    claims.parts[1].requeue(claimed.tag)
    queues = (f"{own[0].namespace}.default.native",)
    with caplog.at_level(logging.WARNING):
        assert len(claims.claim([QueueGroup(name="native", queues=queues)], 1)) == 1
    assert "refuses the command: WRONGTYPE" in caplog.text
    assert "does not answer" not in caplog.text


def test_the_view_of_the_fleet_has_the_lanes_that_answer_and_what_the_others_said_last(
    client: redis.Redis, redis_server: LocalRedisServer, namespace: str
) -> None:
    other = connect(redis_server.url, retries=0)
    clients = (client, other)
    own = Lanes([Lane(number=n, namespace=f"{namespace}-{n}", client=clients[n]) for n in range(2)])
    for lane in own:
        queue = f"{lane.namespace}.default.native"
        lane.client.sadd(known_queues_key(lane.namespace), queue)
        lane.client.lpush(list_key(queue, 0), "message")
    reader = FleetReader(own)
    assert (reader.read().waiting, reader.read().lanes_down) == (2, ())
    other.connection_pool = ConnectionPool(port=1)
    found, new = reader.read(), FleetReader(own).read()
    assert (found.waiting, found.lanes_down, found.lanes_unknown) == (2, (1,), ())
    assert (new.waiting, new.lanes_down, new.lanes_unknown) == (1, (1,), (1,))


@pytest.mark.parametrize("emptied", [0, 1])
def test_a_lane_that_was_emptied_gets_weights_and_limits_of_tenants_back(
    client: redis.Redis, namespace: str, emptied: int
) -> None:
    own = Lanes([Lane(number=n, namespace=f"{namespace}-{n}", client=client) for n in range(2)])
    lane, tenants = own[emptied], Tenants(own)
    for number in range(2):
        restore_copies(own, number)
    tenants.set_limit("gold", 5)
    tenants.set_weight("gold", 2)
    client.delete(*client.keys(f"{lane.namespace}:*"))
    restore_copies(own, emptied)
    assert client.hgetall(limits_key(lane.namespace)) == {"gold": "5"}
    assert client.hgetall(weights_key(lane.namespace)) == {"gold": "2"}
    tenants.set_limit("gold", None)
    restore_copies(own, emptied)  # it has the number of lanes, and so was not emptied
    assert not client.exists(limits_key(lane.namespace))


def test_submissions_with_limits_ask_a_lane_that_hangs_once(
    lanes: Lanes,
    hanging: HangingServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(waiting_elsewhere, "_ANSWER_S", 0.1)
    waiting = WaitingElsewhere(lanes)
    for _ in range(2):
        assert waiting.count(ANSWERING, ["gold", "*"]) == {"gold": 0, "*": 0}
    assert hanging.connections() == 1
    assert caplog.text.count("lane 0 now: it has not answered within") == 1


def test_a_lane_without_the_limits_is_not_asked_at_every_submission(
    client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_elsewhere, "_MAX_AGE_S", 60.0)
    own = Lanes([Lane(number=n, namespace=f"{namespace}-{n}", client=client) for n in range(3)])
    Tenants(Lanes.single(client, own[1].namespace)).set_limit("gold", 5)
    waiting = WaitingElsewhere(own)
    count = partial(waiting.count, 0, ["gold"])
    assert count() == {"gold": 0}
    asked = _calls(client)
    waiting.add(2, ["gold", "gold", "iron"])
    assert count() == {"gold": 2}
    assert _calls(client) == asked


def _calls(client: redis.Redis) -> int:
    """Return how many scripts the server has run."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])
