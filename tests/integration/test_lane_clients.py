"""A producer of a fleet in a cluster submits, reads, cancels and deletes jobs of every lane."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from imagefleet import Client, InvalidRequest, JobCancelled, QueueFull, State, UnknownJob
from imagefleet.producer.fleet.redrive import redrive
from imagefleet.producer.gateway.jobs.change_subscription import ChangeSubscription
from imagefleet.shared.jobs.redis_keys import limits_key, outbox_messages_key, weights_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.lanes import DEFAULT_LANES
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from tests.support.lane_worker import LaneWorker
from tests.support.redis_cluster import RedisCluster

OWN_IDS = [f"job-{n}" for n in range(24)]


@pytest.fixture
def producer(cluster: RedisCluster, namespace: str) -> Iterator[Client]:
    with Client(cluster.url, namespace=namespace) as client:
        yield client


@pytest.fixture
def workers(cluster: RedisCluster, namespace: str, producer: Client) -> list[LaneWorker]:
    lanes = producer.connection.lanes
    assert len(lanes) == DEFAULT_LANES
    return [LaneWorker(cluster, lane, namespace, len(lanes)) for lane in lanes]


def _submit_own(producer: Client) -> None:
    producer.submit_many([{"prompt": "a", "id": job_id} for job_id in OWN_IDS], seed=1)


def test_jobs_of_every_lane_are_awaited(producer: Client, workers: list[LaneWorker]) -> None:
    _submit_own(producer)
    jobs = [producer.get(job_id) for job_id in OWN_IDS]
    assert [worker.work() > 0 for worker in workers] == [True] * len(workers)
    assert {job.id for job in producer.as_completed(jobs, timeout=60)} == set(OWN_IDS)
    assert producer.connection.recent_ends.counts(600) == {"succeeded": len(OWN_IDS)}


def test_drawn_ids_of_one_call_are_in_one_lane_and_calls_are_in_all(
    producer: Client, workers: list[LaneWorker]
) -> None:
    lanes = producer.connection.lanes
    calls = [producer.submit_many(["a", "b", "c"]) for _ in range(60)]
    used = [{lanes.of(job.id).number for job in jobs} for jobs in calls]
    assert {len(each) for each in used} == {1}
    assert set.union(*used) == set(range(len(lanes)))
    assert sum(worker.work() for worker in workers) == 180


def test_jobs_of_every_lane_are_listed_once(producer: Client) -> None:
    _submit_own(producer)
    assert sorted(status.id for status in producer.jobs()) == sorted(OWN_IDS)


def test_a_call_is_safe_to_repeat(producer: Client, workers: list[LaneWorker]) -> None:
    _submit_own(producer)
    _submit_own(producer)
    assert sum(worker.work() for worker in workers) == len(OWN_IDS)


def test_the_log_names_the_jobs_that_other_lanes_accepted_before_an_error(
    producer: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lanes = producer.connection.lanes
    used = OWN_IDS[-1]
    earlier = [each for each in OWN_IDS if lanes.of(each) is not lanes.of(used)]
    producer.submit("another prompt", id=used, seed=1)
    with pytest.raises(InvalidRequest, match=f"entry {len(earlier)}"):
        producer.submit_many([{"prompt": "a", "id": job_id} for job_id in [*earlier, used]], seed=1)
    [named] = [text for text in caplog.messages if "are accepted: " in text]
    assert sorted(named.rpartition(": ")[2].split(", ")) == sorted(earlier)
    assert len(producer.statuses(OWN_IDS)) == len(earlier) + 1


def test_a_job_is_cancelled_and_deleted_in_its_lane(producer: Client) -> None:
    _submit_own(producer)
    for job_id in OWN_IDS[:8]:
        assert producer.cancel(job_id) is State.CANCELLED
        with pytest.raises(JobCancelled):
            producer.get(job_id).result(timeout=60)
        producer.delete(job_id)
    assert {status.id for status in producer.statuses(OWN_IDS)} == set(OWN_IDS[8:])


def test_a_subscription_hears_the_changes_of_its_lane(producer: Client) -> None:
    _submit_own(producer)
    lanes = producer.connection.lanes
    lane = lanes.of(OWN_IDS[0])
    own = [job_id for job_id in OWN_IDS if lanes.of(job_id) is lane]
    with closing(ChangeSubscription(lane)) as changes:
        followed, heard = set(own), set[str]()
        while heard < followed:  # each is named once when its subscription begins
            heard |= changes.hear(followed, 1)
        producer.cancel(own[0])
        heard.clear()
        while not heard:
            heard |= changes.hear(followed, 1)
        assert heard == {own[0]}
        assert changes.hear(followed - heard, 0.1) == set()


def test_the_lane_of_a_request_does_not_depend_on_what_it_asks_for(producer: Client) -> None:
    requests = [JobRequest.parse({"prompt": "a", "tenant": tenant}) for tenant in ("x", "y")]
    records = producer.connection.records
    for number, request in enumerate(requests):
        assert records.submit([(f"same-{number}", request)], offers={}) == [True]
        assert records.of(f"same-{number}").get(f"same-{number}").request == request


def test_the_view_of_the_fleet_is_of_all_lanes(producer: Client, workers: list[LaneWorker]) -> None:
    _submit_own(producer)
    producer.submit("of gold", tenant="gold", id=OWN_IDS[0] + "-gold")
    fleet = producer.connection.read_fleet()
    [queue] = fleet.queues
    assert (queue.model, queue.shape, queue.waiting, queue.tenants) == (
        *("default", "native"),
        *(len(OWN_IDS) + 1, 2),
    )
    assert fleet.waiting == len(OWN_IDS) + 1
    assert queue.oldest_s is not None
    assert len(fleet.workers) == 1  # it has a lease in every lane
    held = sum(len(worker.claim()) for worker in workers)
    fleet = producer.connection.read_fleet()
    assert (fleet.waiting, fleet.in_flight, fleet.queues) == (0, held, ())
    assert fleet.workers[0].claims == held


def test_tenants_have_their_weights_in_every_lane_and_their_jobs_are_counted_in_all(
    producer: Client,
) -> None:
    producer.tenants.set_weight("gold", 2)
    for job_id in OWN_IDS:
        producer.submit("a", id=job_id, tenant="gold")
    everyone, gold = producer.tenants.statuses()
    assert (everyone.tenant, everyone.waiting) == ("*", len(OWN_IDS))
    assert (gold.waiting, gold.weight) == (len(OWN_IDS), 2)
    weights = [
        each.client.hgetall(weights_key(each.namespace)) for each in producer.connection.lanes
    ]
    assert weights == [{"gold": "2"}] * len(weights)
    producer.tenants.set_limit("gold", 5)
    producer.tenants.set_limit("gold", None)
    assert not any(
        each.client.exists(limits_key(each.namespace)) for each in producer.connection.lanes
    )


def test_a_limit_counts_what_waits_in_every_lane(producer: Client) -> None:
    lanes = producer.connection.lanes
    producer.tenants.set_limit("gold", len(OWN_IDS))
    for job_id in OWN_IDS:
        producer.submit("a", id=job_id, tenant="gold")
    free = [f"more-{number}" for number in range(100)]
    one_of_each = {lanes.of(job_id).number: job_id for job_id in free}
    for job_id in one_of_each.values():
        with pytest.raises(QueueFull, match=f"{len(OWN_IDS)} "):
            producer.submit("a", id=job_id, tenant="gold")
    producer.submit("a")
    producer.tenants.set_limit("*", len(OWN_IDS))
    with pytest.raises(QueueFull):
        producer.submit("a")
    producer.tenants.set_limit("*", len(OWN_IDS) + 2)
    producer.submit("a")
    with pytest.raises(QueueFull):
        producer.submit("a")


def test_dead_letters_of_every_lane_are_read_redriven_and_dropped(
    producer: Client, workers: list[LaneWorker]
) -> None:
    _submit_own(producer)
    for worker in workers:
        worker.give_up()
    letters = producer.dead_letters.read()
    assert {letter.job_id for letter in letters} == set(OWN_IDS)
    assert [letter.at for letter in letters] == sorted((each.at for each in letters), reverse=True)
    assert letters[:5] == producer.dead_letters.read(5)
    assert set(producer.dead_letters.ids()) == {letter.id for letter in letters}
    for letter in letters[:8]:
        assert producer.dead_letters.find(letter.id) == letter
        assert redrive(producer.dead_letters, letter).done
    for letter in letters[8:]:
        producer.dead_letters.drop(letter)
    assert producer.dead_letters.read() == []
    assert sum(worker.work() for worker in workers) == 8
    states = Counter(status.state for status in producer.statuses(OWN_IDS))
    assert states == {State.SUCCEEDED: 8, State.FAILED: len(OWN_IDS) - 8}


def test_callbacks_of_every_lane_are_listed_and_replayed(producer: Client) -> None:
    lanes = producer.connection.lanes
    for job_id in OWN_IDS:
        producer.submit("a", id=job_id, callback_url="https://example.com/hook")
        producer.cancel(job_id)
    waiting = producer.outbox.entries()
    assert {entry.job_id for entry in waiting} == set(OWN_IDS)
    assert [entry.at for entry in waiting] == sorted(entry.at for entry in waiting)
    refused = DeliveryOutcome(verdict=DeliveryVerdict.REFUSED, reason="no")
    for entry in waiting[:6]:
        lane = lanes.of(entry.job_id)
        text = lane.client.hget(outbox_messages_key(lane.namespace), entry.id)
        Outbox(lane.client, lane.namespace).give_up(OutboxMessage.parse(str(text)), refused)
    failed = producer.outbox.entries(failed=True)
    assert {entry.id for entry in failed} == {entry.id for entry in waiting[:6]}
    assert producer.outbox.entries(limit=8)[:6] == failed
    assert [entry.standing for entry in producer.outbox.entries_of(failed[0].job_id)] == [
        "given up"
    ]
    assert [each.reason for each in producer.outbox.attempts_of(failed[0].job_id)] == ["no"]
    for entry in failed:
        producer.outbox.replay(entry.id)
    assert producer.outbox.entries(failed=True) == []
    assert all(producer.outbox.make_due_now(entry.id) for entry in waiting)
    with pytest.raises(UnknownJob, match="no given-up callback"):
        producer.outbox.replay(waiting[-1].id)
