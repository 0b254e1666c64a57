"""Lists, stars and quotas of the HTTP gateway name jobs of every lane of a real cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefleet import Client, State
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.access.rates import RequestRates
from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.producer.gateway.jobs.stars import JobStars
from imagefleet.producer.gateway.jobs.tenant_index import TenantIndex
from imagefleet.producer.gateway.jobs.timeline import Cursor, Entry, TimelineReader
from tests.support.redis_cluster import RedisCluster

NAMES = [f"job-{number}" for number in range(16)]
IDS = [stored_id("gold", name) for name in NAMES]


@pytest.fixture
def producer(cluster: RedisCluster, namespace: str) -> Iterator[Client]:
    with Client(cluster.url, namespace=namespace) as client:
        yield client


@pytest.fixture
def connection(producer: Client) -> Connection:
    assert len({producer.connection.lanes.of(job_id).number for job_id in IDS}) > 4
    return producer.connection


def _names(entries: list[Entry]) -> list[str]:
    return [entry.job_id for entry in entries]


def test_a_list_of_a_tenant_has_the_fields_of_records_in_every_lane(
    producer: Client, connection: Connection
) -> None:
    index, reader = TenantIndex(connection), TimelineReader(connection)
    for name, job_id in zip(NAMES, IDS, strict=True):
        assert index.add("gold", name)
        producer.submit("a", id=job_id, tenant="gold")
    timeline = index.timeline("gold")
    newest = reader.read(timeline, None, 10, ("state",))
    assert _names(newest) == IDS[:-11:-1]
    assert {entry.values for entry in newest} == {("queued",)}
    older = reader.read(timeline, Cursor(at=newest[-1].at, older=True), 10, ("state", "request"))
    assert _names(older) == IDS[5::-1]
    assert all(each.values[1] for each in older)
    newer = reader.read(timeline, Cursor(at=older[-1].at, older=False), 3, ("state",))
    assert _names(newer) == IDS[1:4]


def test_a_refused_job_leaves_the_list_and_an_accepted_one_stays(
    producer: Client, connection: Connection
) -> None:
    index, reader = TenantIndex(connection), TimelineReader(connection)
    for name in NAMES:
        index.add("gold", name)
    for job_id in IDS[:8]:
        producer.submit("a", id=job_id, tenant="gold")
    for name in NAMES:
        index.remove_refused("gold", name)
    assert _names(reader.read(index.timeline("gold"), None, 99, ("state",))) == IDS[7::-1]


def test_jobs_of_every_lane_are_starred(producer: Client, connection: Connection) -> None:
    stars, reader = JobStars(connection), TimelineReader(connection)
    for job_id in IDS:
        producer.submit("a", id=job_id, tenant="gold")
        stars.set("gold", producer.get(job_id).status())
    stars.remove("gold", IDS[8:])
    assert stars.among("gold", IDS) == set(IDS[:8])
    listed = reader.read(stars.timeline("gold"), None, 99, ("state",))
    assert [(entry.job_id, entry.values) for entry in listed] == [
        (job_id, ("queued",)) for job_id in IDS[7::-1]
    ]


def test_a_quota_takes_back_only_the_images_of_jobs_that_no_lane_has(
    producer: Client, connection: Connection
) -> None:
    quota = ImageQuota(connection)
    caller = Caller(
        key_id="key",
        name="key",
        tenant="gold",
        scopes=frozenset(Scope),
        max_priority=3,
        images_per_day=20,
        per_minute=2,
    )
    charges = [quota.charge(caller, 1, job_id) for job_id in IDS]
    assert all(charge.allowed for charge in charges)
    assert not quota.charge(caller, 5, "more").allowed
    for job_id in IDS[:8]:
        producer.submit("a", id=job_id, tenant="gold")
    for charge, job_id in zip(charges, IDS, strict=True):
        quota.give_back(charge, job_id)
    assert quota.used(caller) == 8
    rates = RequestRates(connection)
    assert [rates.take(caller) > 0 for _ in range(3)] == [False, False, True]


def test_bulk_runs_of_every_lane_are_found_and_cancelled(producer: Client, tmp_path: Path) -> None:
    runs = [producer.bulk([f"{n}"], tmp_path / str(n)) for n in range(4)]
    connection = producer.connection
    assert len({connection.lanes.of(run.id).number for run in runs}) > 1
    with connection.runs_by_lane() as by_lane:
        assert sorted(by_lane.ids()) == sorted(run.id for run in runs)
        assert by_lane.longest_idle_s() < 600
    assert producer.find_bulk(runs[0].id).status().shards_by_state[State.QUEUED] == 1
    assert [run.cancel() for run in runs] == [State.CANCELLED] * 4
