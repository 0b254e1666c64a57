"""A worker process takes the jobs of a fleet whose lanes lie in a real cluster."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from imagefleet import Client, Job, State
from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.errors import BrokerUnavailable, ConfigurationError
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import leases_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.settings.settings import Settings
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until
from tests.support.receiver import Receiver
from tests.support.redis_cluster import RedisCluster

JOBS = 24


@pytest.fixture
def producer(cluster: RedisCluster, namespace: str) -> Iterator[Client]:
    with Client(cluster.url, namespace=namespace) as producer:
        yield producer


def _ready(start: StartWorker, cluster: RedisCluster, **settings: str) -> Worker:
    worker = start(
        IMAGEFLEET_REDIS_URL=cluster.url, IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1", **settings
    )
    worker.await_log("ready after")
    return worker


def test_a_worker_ends_jobs_of_every_lane_calls_back_and_drains(
    start: StartWorker, cluster: RedisCluster, producer: Client
) -> None:
    worker = _ready(start, cluster)
    with Receiver() as receiver:
        jobs = [
            producer.submit("a", seed=n, id=f"job-{n}", tenant="gold", callback_url=receiver.url)
            for n in range(JOBS)
        ]
        assert finish(producer, jobs) == {State.SUCCEEDED}
        receiver.wait_for(JOBS)
    lanes = producer.connection.lanes
    assert {lanes.of(job.id).number for job in jobs} == set(range(len(lanes)))
    _submit_to_another_lane(lanes)
    [letter] = until(lambda: list(producer.connection.dead_letters.read()))
    assert "belongs to another lane" in letter.reason
    assert worker.terminate() == 0
    assert "drained: " in worker.output()
    assert not any(lane.client.zcard(leases_key(lane.namespace)) for lane in lanes)
    refused = start(IMAGEFLEET_REDIS_URL=cluster.url, IMAGEFLEET_LANES="4")
    assert refused.wait() == ExitCode.CONFIG
    assert "was made with 8 lanes; set it to 8" in refused.output()
    settings = Settings.load(redis_url=cluster.url, namespace=producer.settings.namespace, lanes=4)
    with pytest.raises(ConfigurationError, match="made with 8 lanes"):
        Connection(settings).offers()


def _submit_to_another_lane(lanes: Lanes) -> None:
    wrong = lanes[(lanes.of("stray").number + 1) % len(lanes)]
    records = JobRecords(wrong.client, wrong.namespace, 3600)
    assert records.submit([("stray", JobRequest.parse({"prompt": "a"}))]) == [True]


def test_a_worker_goes_on_when_a_master_is_killed(
    start: StartWorker, tmp_path: Path, namespace: str
) -> None:
    with (
        RedisCluster(tmp_path / "cluster", replicas=True) as cluster,
        Client(cluster.url, namespace=namespace) as producer,
    ):
        worker = _ready(start, cluster)
        before = [producer.submit(f"job {n}", seed=n) for n in range(JOBS)]
        cluster.kill_master_of(producer.connection.namespace)
        after = [until(partial(_submitted, producer, n)) for n in range(JOBS)]
        assert finish(producer, [*before, *after]) == {State.SUCCEEDED}
        lanes, down = producer.connection.lanes, _end_first_lane(cluster, producer)
        ids = [job_id for n in range(3 * JOBS) if lanes.of(job_id := f"own-{n}").number not in down]
        others = [producer.submit("job", seed=1, id=job_id) for job_id in ids]
        assert finish(producer, others) == {State.SUCCEEDED}
        second = _ready(start, cluster)
        assert re.search("lane 0 does not answer .*: its jobs wait", second.output())
        assert (worker.terminate(), second.terminate()) == (0, 0)


def _end_first_lane(cluster: RedisCluster, producer: Client) -> set[int]:
    """Kill the master of lane 0, which has no replica any more. Return the lanes that are down."""
    lanes = producer.connection.lanes
    masters = [cluster.master_of(lane.namespace).port for lane in lanes]
    cluster.master_of(lanes.first.namespace).kill()
    return {number for number, port in enumerate(masters) if port == masters[0]}


def _submitted(producer: Client, number: int) -> Job | None:
    try:
        return producer.submit(f"later job {number}", seed=number)
    except BrokerUnavailable:
        return None
