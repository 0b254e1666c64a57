"""Lanes in a real cluster: jobs go through them while slots move and masters die."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import AskError, TryAgainError

from imagefleet import State
from imagefleet.producer.gateway.jobs.change_subscription import ChangeSubscription
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import expiring_key, job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect_lanes
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.write_errors import is_outage
from tests.support.lane_worker import LaneWorker
from tests.support.processes import until
from tests.support.redis_cluster import RedisCluster

REQUEST = JobRequest.parse({"prompt": "a"})


@pytest.fixture
def connected(cluster: RedisCluster, namespace: str) -> Iterator[Callable[[int], Lanes]]:
    """A function that returns the lanes of a fleet in the cluster."""
    opened: list[Lanes] = []

    def connect(count: int) -> Lanes:
        opened.append(connect_lanes(cluster.url, namespace, lanes=count, retries=RETRY_FOREVER))
        return opened[-1]

    yield connect
    for lanes in opened:
        lanes.close()


def _submit(lanes: Lanes, *ids: str) -> None:
    for job_id in ids:
        lane = lanes.of(job_id)
        assert JobRecords(lane.client, lane.namespace, 3600).submit([(job_id, REQUEST)]) == [True]


def _states(lanes: Lanes, ids: list[str]) -> list[State | None]:
    def ask(lane: Lane, own: list[str]) -> list[State | None]:
        return JobRecords(lane.client, lane.namespace, 3600).states(own)

    return lanes.answer_each(ids, str, ask)


@pytest.mark.parametrize("count", [1, 4])
def test_jobs_go_through_their_lanes_from_submission_to_their_end(
    cluster: RedisCluster, connected: Callable[[int], Lanes], namespace: str, count: int
) -> None:
    lanes, ids = connected(count), [f"job-{n}" for n in range(12)]
    _submit(lanes, *ids)
    done = {lane.number: LaneWorker(cluster, lane, namespace, count).work() for lane in lanes}
    assert sum(done.values()) == len(ids)
    assert all(done.values())
    assert set(_states(lanes, ids)) == {State.SUCCEEDED}


def test_changes_are_heard_only_at_the_server_of_their_slot_also_after_it_has_moved(
    cluster: RedisCluster, connected: Callable[[int], Lanes]
) -> None:
    lanes = connected(1)
    lane, subscription = lanes.first, ChangeSubscription(lanes.first)
    records = JobRecords(lane.client, lane.namespace, 3600)
    _submit(lanes, "job", "other")

    def hears_job() -> bool:
        return subscription.hear({"job"}, 0.05) == {"job"}

    until(hears_job)  # it has subscribed
    assert not hears_job()
    elsewhere = next(each for each in cluster.masters if each != cluster.master_of(lane.namespace))
    with elsewhere.client().pubsub() as pubsub:
        pubsub.psubscribe("*:changes:*")
        assert until(lambda: pubsub.get_message(timeout=1))["type"] == "psubscribe"
        records.cancel("job", "", None)
        assert hears_job()
        assert pubsub.get_message(timeout=0.1) is None
    cluster.move_slot_of(lane.namespace)
    until(hears_job)  # it has subscribed again
    assert not hears_job()
    records.delete_ended("job")
    assert hears_job()
    subscription.close()


def test_a_slot_that_moves_as_a_whole_takes_its_jobs_along(
    cluster: RedisCluster, connected: Callable[[int], Lanes], namespace: str
) -> None:
    lanes = connected(1)
    worker = LaneWorker(cluster, lanes.first, namespace, 1)
    _submit(lanes, "running", "waiting")
    [running, waiting] = worker.claim()
    worker.start("running", running)
    cluster.move_slot_of(lanes.first.namespace)
    worker.finish("running", running)  # this client follows the slot by itself
    with pytest.raises(redis.ConnectionError, match="has moved"):
        worker.claim()  # this one repeats nothing
    assert worker.claim() == []
    worker.start("waiting", waiting)
    worker.finish("waiting", waiting)
    assert set(_states(lanes, ["running", "waiting"])) == {State.SUCCEEDED}


def test_no_script_runs_in_a_slot_that_is_moved_key_by_key(
    cluster: RedisCluster, connected: Callable[[int], Lanes], namespace: str
) -> None:
    lanes = connected(1)
    worker = LaneWorker(cluster, lanes.first, namespace, 1)
    _submit(lanes, "job")
    with cluster.moving_slot_of(lanes.first.namespace):
        with pytest.raises((TryAgainError, AskError)) as refused:
            worker.claim()  # all keys that it declares are still here
        assert is_outage(refused.value)
        assert _states(lanes, ["job"]) == [State.QUEUED]
    with pytest.raises(redis.ConnectionError, match="has moved"):
        worker.claim()
    assert worker.work() == 1
    assert _states(lanes, ["job"]) == [State.SUCCEEDED]


def test_a_record_that_has_moved_is_not_taken_for_a_missing_one(
    cluster: RedisCluster, connected: Callable[[int], Lanes], namespace: str
) -> None:
    lane, store = connected(1).first, "file:///store"
    _submit(connected(1), "job")
    lane.client.zadd(expiring_key(lane.namespace, store), {"job": 1})
    with cluster.master_of(lane.namespace).client() as ordinary:
        expiry = ImageExpiry(ordinary, lane.namespace, store)
        assert expiry.claim() is None  # the job is queued
        lane.client.zadd(expiring_key(lane.namespace, store), {"job": 1})
        with (
            cluster.moving_slot_of(lane.namespace, job_key(lane.namespace, "job")),
            pytest.raises(redis.ResponseError, match="non local key"),
        ):
            expiry.claim()


def test_a_killed_master_loses_no_job(tmp_path: Path, namespace: str) -> None:
    with RedisCluster(tmp_path, replicas=True) as cluster:
        lanes = connect_lanes(cluster.url, namespace, lanes=1, retries=RETRY_FOREVER)
        worker = LaneWorker(cluster, lanes.first, namespace, 1)
        _submit(lanes, "running", "waiting")
        [running, waiting] = worker.claim()
        worker.start("running", running)
        cluster.kill_master_of(lanes.first.namespace)
        worker.finish("running", running)
        worker.start("waiting", waiting)
        worker.finish("waiting", waiting)
        _submit(lanes, "later")
        assert until(lambda: _claims_again(worker)) == 1
        assert set(_states(lanes, ["running", "waiting", "later"])) == {State.SUCCEEDED}


def _claims_again(worker: LaneWorker) -> int:
    try:
        return worker.work()
    except redis.ConnectionError:
        return 0


def test_a_lane_that_is_down_stops_no_other(tmp_path: Path, namespace: str) -> None:
    with RedisCluster(tmp_path) as cluster:
        lanes = connect_lanes(cluster.url, namespace, lanes=8, retries=0)
        workers = [LaneWorker(cluster, lane, namespace, 8) for lane in lanes]
        port = cluster.master_of(lanes.first.namespace).port
        is_down = [cluster.master_of(lane.namespace).port == port for lane in lanes]
        cluster.kill_master_of(lanes.first.namespace)
        for job_id in (f"job-{n}" for n in range(40)):
            number = lanes.of(job_id).number
            if is_down[number]:
                with pytest.raises(redis.RedisError) as refused:
                    _submit(lanes, job_id)
                assert is_outage(refused.value)
            else:
                _submit(lanes, job_id)
                assert workers[number].work() == 1
