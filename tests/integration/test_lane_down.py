"""While one lane of a real cluster is down, lists have what others hold, and name that lane."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from redis import ConnectionPool

from imagefleet import BrokerUnavailable, Client, UnknownJob
from imagefleet.producer.commands.cli import main
from imagefleet.producer.fleet.metrics import FleetCollector
from imagefleet.producer.fleet.snapshot import read_snapshot
from imagefleet.producer.gateway.app import build_app
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import outbox_messages_key
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from tests.support.redis_cluster import RedisCluster

LANES_DOWN = "x-imagefleet-lanes-down"
IDS = [f"job-{number}" for number in range(16)]


@pytest.fixture
def producer(cluster: RedisCluster, namespace: str) -> Iterator[Client]:
    with Client(cluster.url, namespace=namespace) as client:
        yield client


@pytest.fixture
def gateway(cluster: RedisCluster, namespace: str, tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "store").mkdir()
    settings = GatewaySettings.load(
        redis_url=cluster.url, namespace=namespace, storage_url=f"file://{tmp_path}/store"
    )
    gateway = Gateway(settings, require_keys=False)
    gateway.secret.load()
    yield gateway
    gateway.close()


def _down(client: Client, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server of a lane be down, as this client sees it."""
    own = client.connection.lanes[lane.number].client
    monkeypatch.setattr(own, "connection_pool", ConnectionPool(port=1))


def _ask(gateway: Gateway, method: str, path: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.request(method, path)

    return asyncio.run(ask())


def _give_up(producer: Client, job_ids: list[str]) -> dict[str, str]:
    """Let a callback of each job be given up. Return their ids by job."""
    for job_id in job_ids:
        producer.submit("a", id=job_id, callback_url="https://example.com/hook")
        producer.cancel(job_id)
    refused = DeliveryOutcome(verdict=DeliveryVerdict.REFUSED, reason="no")
    given_up = {}
    for entry in producer.outbox.entries():
        lane = producer.connection.lanes.of(entry.job_id)
        text = lane.client.hget(outbox_messages_key(lane.namespace), entry.id)
        Outbox(lane.client, lane.namespace).give_up(OutboxMessage.parse(str(text)), refused)
        given_up[entry.job_id] = entry.id
    return given_up


def test_jobs_of_lanes_that_answer_are_listed(
    producer: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer.submit_many([{"prompt": "a", "id": job_id} for job_id in IDS])
    lanes = producer.connection.lanes
    down = lanes.of(IDS[0])
    _down(producer, down, monkeypatch)
    assert {status.id for status in producer.jobs()} == {
        job_id for job_id in IDS if lanes.of(job_id) is not down
    }
    assert f"lane {down.number} does not answer" in caplog.text
    for lane in lanes:
        _down(producer, lane, monkeypatch)
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        list(producer.jobs())


def test_new_jobs_get_ids_of_lanes_that_take_jobs(
    producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = producer.connection
    down = connection.lanes.of(IDS[0])

    def drawn(prefix: str = "") -> set[int]:
        ids = (connection.records.id_source(prefix.__add__)() for _ in range(200))
        return {connection.lanes.of(f"{prefix}{job_id}").number for job_id in ids}

    every = {lane.number for lane in connection.lanes}
    assert drawn() == every
    with monkeypatch.context() as patch:
        _down(producer, down, patch)
        with pytest.raises(BrokerUnavailable):
            producer.submit("a", id=IDS[0])
        for _ in range(16):
            producer.submit("a")
        assert drawn() == drawn("tenant.") == every - {down.number}
    producer.submit("a", id=IDS[0])
    assert drawn() == every


def test_callbacks_of_lanes_that_answer_are_sent_again(
    producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = _give_up(producer, IDS)
    lanes = producer.connection.lanes
    down = lanes.of(IDS[0])
    other = next(job_id for job_id in IDS if lanes.of(job_id) is not down)
    with monkeypatch.context() as patch:
        _down(producer, down, patch)
        producer.outbox.replay(callbacks[other])
        producer.outbox.enable("https://example.com/hook")
        with pytest.raises(BrokerUnavailable, match=f"{callbacks[IDS[0]]}.*: {down.number}$"):
            producer.outbox.replay(callbacks[IDS[0]])
        with pytest.raises(BrokerUnavailable, match=f"{callbacks[IDS[0]]}.*: {down.number}$"):
            producer.outbox.make_due_now(callbacks[IDS[0]])
        with pytest.raises(UnknownJob):
            producer.outbox.replay(callbacks[other], job_id=other)
        with pytest.raises(BrokerUnavailable, match=f"letter.*: {down.number}$"):
            producer.dead_letters.find("letter")
    producer.outbox.replay(callbacks[IDS[0]], job_id=IDS[0])
    left = {entry.job_id for entry in producer.outbox.entries(failed=True)}
    assert left == set(IDS) - {other, IDS[0]}


def test_a_gateway_lists_what_other_lanes_have_and_names_the_one_that_is_down(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, lanes = gateway.client, gateway.client.connection.lanes
    gateway.jobs._index.add(None, "first")
    list_lane = gateway.jobs._index.timeline(None).lane
    down = next(lane for lane in lanes if lane not in (lanes.first, list_lane))
    for job_id in IDS:
        gateway.jobs._index.add(None, job_id)
    callbacks = _give_up(client, IDS)
    theirs = {job_id for job_id in IDS if lanes.of(job_id) is down}
    assert theirs
    with monkeypatch.context() as patch:
        _down(client, down, patch)
        jobs = _ask(gateway, "GET", "/v1/jobs")
        assert {each["id"] for each in jobs.json()["data"]} == set(IDS) - theirs
        assert jobs.headers[LANES_DOWN] == str(down.number)
        found = _ask(gateway, "GET", "/v1/fleet/callbacks")
        assert {each["id"] for each in found.json()["data"]} == {
            callbacks[job_id] for job_id in set(IDS) - theirs
        }
        assert found.headers[LANES_DOWN] == str(down.number)
        for job_id, status in ((min(theirs), 503), (min(set(IDS) - theirs), 204)):
            path = f"/v1/fleet/callbacks/{callbacks[job_id]}/replay"
            assert _ask(gateway, "POST", path).status_code == status
        assert _ask(gateway, "GET", "/v1/runs").status_code == 200
    again = _ask(gateway, "GET", "/v1/jobs")
    assert {each["id"] for each in again.json()["data"]} == set(IDS)
    assert LANES_DOWN not in again.headers


def test_jobs_of_a_lane_that_is_down_stay_in_the_list_of_their_tenant(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, index = gateway.client.connection, gateway.jobs._index
    place = index.timeline(None)
    for number, job_id in enumerate(IDS, 1):
        gateway.client.submit("a", id=job_id)
        place.lane.client.zadd(place.key, {job_id: number})  # so old that lost ones are removed
    down = next(
        lane for lane in connection.lanes if lane not in (connection.lanes.first, place.lane)
    )
    with monkeypatch.context() as patch:
        _down(gateway.client, down, patch)
        assert len(_ask(gateway, "GET", "/v1/jobs").json()["data"]) < len(IDS)
    assert len(_ask(gateway, "GET", "/v1/jobs").json()["data"]) == len(IDS)


def test_exporter_fleet_and_commands_name_the_lane_that_is_down(
    tmp_path: Path, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        RedisCluster(tmp_path) as cluster,
        Client(cluster.url, namespace=namespace) as producer,
    ):
        connection = producer.connection
        lanes = connection.lanes
        for lane in lanes:
            lane.client.lpush(list_key(f"{lane.namespace}.default.native", 0), "message")
        producer.submit_many([{"prompt": "a", "id": job_id} for job_id in IDS])
        registry = CollectorRegistry()
        registry.register(FleetCollector(lambda: read_snapshot(connection)))
        assert _down_lanes(registry) == set()
        first = cluster.master_of(lanes.first.namespace).port
        ports = {lane.number: cluster.master_of(lane.namespace).port for lane in lanes}
        killed = next(port for port in ports.values() if port != first)
        down = {number for number, port in ports.items() if port == killed}
        next(each for each in cluster.masters if each.port == killed).kill()
        assert _down_lanes(registry) == down
        environment = {"IMAGEFLEET_REDIS_URL": cluster.url, "IMAGEFLEET_NAMESPACE": namespace}
        listed = CliRunner().invoke(main, ["jobs"], env=environment)
        assert listed.exit_code == 0, listed.output
        left = {job_id for job_id in IDS if lanes.of(job_id).number not in down}
        assert {line.split()[0] for line in listed.stdout.splitlines()} == left
        said = [text for text in caplog.messages if text.endswith(": its jobs are left out")]
        assert {int(text.split()[1]) for text in said} == down
        settings = GatewaySettings.load(redis_url=cluster.url, namespace=namespace)
        gateway = Gateway(settings, require_keys=False)
        body = _ask(gateway, "GET", "/v1/fleet")
        assert set(body.json()["lanes_down"]) == down
        gateway.close()


def _down_lanes(registry: CollectorRegistry) -> set[int]:
    found = {
        int(sample.labels["lane"])
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "imagefleet_lane_up" and sample.value == 0
    }
    assert registry.get_sample_value("imagefleet_redis_up") == (0 if found else 1)
    return found
