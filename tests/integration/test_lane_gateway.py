"""Lists, stars and quotas of the HTTP gateway name jobs of every lane of a real cluster."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import ConnectionPool

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
from imagefleet.producer.gateway.jobs.watch import JobWatcher
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.lanes import Lane
from tests.support.redis_cluster import RedisCluster

NAMES = [f"job-{number}" for number in range(16)]
IDS = [stored_id("gold", name) for name in NAMES]
CALLER = Caller(
    key_id="key",
    name="key",
    tenant="gold",
    scopes=frozenset(Scope),
    max_priority=3,
    images_per_day=20,
    per_minute=2,
)


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


class AcceptedMeanwhile:
    """Accepts a job between the first look for its record in another lane and what follows."""

    def __init__(self, producer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        records = producer.connection.records
        self._submit, self._look = producer.submit, records.is_elsewhere
        self._accepted: set[str] = set()
        monkeypatch.setattr(records, "is_elsewhere", self._is_elsewhere)

    def _is_elsewhere(self, lane: Lane, job_id: str) -> bool:
        found = self._look(lane, job_id)
        if job_id not in self._accepted:
            self._accepted.add(job_id)
            self._submit("a", id=job_id, tenant="gold")
        return found


def test_a_job_that_is_accepted_while_an_equal_one_is_refused_stays_listed_and_charged(
    producer: Client, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, reader, quota = (
        TenantIndex(connection),
        TimelineReader(connection),
        ImageQuota(connection),
    )
    charges = [quota.charge(CALLER, 1, job_id) for job_id in IDS]
    for name in NAMES:
        index.add("gold", name)
    AcceptedMeanwhile(producer, monkeypatch)
    for charge, job_id in zip(charges[:8], IDS[:8], strict=True):
        quota.give_back(charge, job_id)
    for name in NAMES[8:]:
        index.remove_refused("gold", name)
    assert quota.used(CALLER) == len(IDS)
    listed = reader.read(index.timeline("gold"), None, 99, ("state",))
    assert sorted(_names(listed)) == sorted(IDS)


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
    charges = [quota.charge(CALLER, 1, job_id) for job_id in IDS]
    assert all(charge.allowed for charge in charges)
    assert not quota.charge(CALLER, 5, "more").allowed
    for job_id in IDS[:8]:
        producer.submit("a", id=job_id, tenant="gold")
    for charge, job_id in zip(charges, IDS, strict=True):
        quota.give_back(charge, job_id)
    assert quota.used(CALLER) == 8
    rates = RequestRates(connection)
    assert [rates.take(CALLER) > 0 for _ in range(3)] == [False, False, True]


def test_bulk_runs_of_every_lane_are_found_and_cancelled(producer: Client, tmp_path: Path) -> None:
    runs = [producer.bulk([f"{n}"], tmp_path / str(n)) for n in range(4)]
    connection = producer.connection
    assert len({connection.lanes.of(run.id).number for run in runs}) > 1
    with connection.runs_by_lane() as by_lane:
        assert sorted(by_lane.ids()) == sorted(run.id for run in runs)
        assert by_lane.longest_idle_s() < 600
    assert producer.find_bulk(runs[0].id).status().shards_by_state[State.QUEUED] == 1
    assert [run.cancel() for run in runs] == [State.CANCELLED] * 4


def test_a_lane_that_is_down_ends_no_wait_for_jobs_of_another(
    producer: Client, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {
        job.id: job
        for job in producer.submit_many([{"prompt": "a", "id": job_id} for job_id in IDS])
    }
    lanes, down = connection.lanes, IDS[0]
    up = next(job_id for job_id in IDS if lanes.of(job_id) is not lanes.of(down))
    monkeypatch.setattr(lanes.of(down).client, "connection_pool", ConnectionPool(port=1))
    assert producer.cancel(up) is State.CANCELLED
    assert next(producer.as_completed([jobs[down], jobs[up]])).id == up
    watcher = JobWatcher(connection)

    async def first_status() -> JobStatus:
        async with watcher.watch(down), watcher.watch(up) as changes:
            return await anext(changes)

    assert asyncio.run(first_status()).id == up
    watcher.close()
