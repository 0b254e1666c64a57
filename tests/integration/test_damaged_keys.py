"""A key that anybody may have written costs at most itself: nobody is kept from working by it."""

import json
import time
from collections.abc import Callable

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import CallbackEvent
from imagefleet.shared.jobs.progress import AttemptVerdict, ProgressReport
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.tenants import Tenants
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.records import result_of_one_image, start_attempt

Damage = Callable[[redis.Redis, str], object]


@pytest.fixture
def group(namespace: str) -> list[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(f"{namespace}.q",))]


def _string(key: str) -> Damage:
    return lambda client, namespace: client.set(f"{namespace}:{key}", "another type")


def _field(key: str, field: str, value: str) -> Damage:
    return lambda client, namespace: client.hset(f"{namespace}:{key}", field, value)


@pytest.mark.parametrize(
    "damage",
    [
        *map(_string, ["leases:lengths", "workers", "drains", "deliveries", "claims:dead"]),
        _field("leases:lengths", "ahead", "abc"),
        _string("queues"),
        _string("queues:0"),
    ],
)
def test_the_messages_of_a_dead_worker_are_requeued_beside_damaged_keys(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    group: list[QueueGroup],
    damage: Damage,
) -> None:
    client.lpush(list_key(group[0].queues[0], 0), "a", "b")
    make_claims("lost").claim(group, 2)
    living = make_claims("living")
    damage(client, namespace)
    client.zadd(f"{namespace}:leases", {"dead": 1, "lost": 2, "ahead": time.time() + 1e6})
    assert living.lease.renew() is not None
    living.lease.reclaim_expired()
    assert client.zrange(f"{namespace}:leases", 0, 0) == ["living"]
    assert [each.message for each in living.claim(group, 2)] == ["a", "b"]


@pytest.mark.parametrize(
    "damage",
    [
        _string("deliveries"),
        _string("weights"),
        lambda client, namespace: client.hset(
            f"{namespace}:deliveries",
            "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8",
            "abc",  # of "a"
        ),
        _field("weights", "", "1e-320"),
        _field("weights", "", "nan"),
        _field("weights", "", "inf"),
    ],
)
def test_messages_are_claimed_beside_damaged_keys(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    group: list[QueueGroup],
    damage: Damage,
) -> None:
    claims = make_claims("w")
    client.hset(f"{namespace}:deliveries", "another message", 1)
    damage(client, namespace)
    client.lpush(list_key(group[0].queues[0], 0), "a", "b")
    claimed = claims.claim(group, 1) + claims.claim(group, 1)
    assert [each.message for each in claimed] == ["a", "b"]


@pytest.mark.parametrize("key", ["queues", "queues:0"])
@pytest.mark.parametrize("known", [1, 200])
def test_messages_are_claimed_where_the_known_queues_should_be(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    group: list[QueueGroup],
    key: str,
    known: int,
) -> None:
    """The second claim finds the queues empty, and forgets them."""
    claims, queue = make_claims("w"), group[0].queues[0]
    client.sadd(f"{namespace}:queues", *(f"{queue}@t{number}" for number in range(known)))
    client.delete(f"{namespace}:{key}")
    client.set(f"{namespace}:{key}", "another type")
    client.lpush(list_key(queue, 0), "a")
    claimed = [claims.claim(group, 1) for _ in range(2)]
    assert [each.message for each in claimed[0]] == ["a"]
    assert claimed[1] == []
    assert client.hlen(claims.key) == 1


@pytest.mark.parametrize("key", ["queues", "queues:0", "queues:waiting"])
@pytest.mark.parametrize("known", [1, 600])
def test_jobs_are_submitted_under_a_limit_beside_damaged_keys(
    producer: Client, client: redis.Redis, namespace: str, key: str, known: int
) -> None:
    client.sadd(f"{namespace}:queues", *(f"{namespace}.q@t{number}" for number in range(known)))
    client.delete(f"{namespace}:{key}")
    client.set(f"{namespace}:{key}", "another type")
    Tenants(Lanes.single(client, namespace)).set_limit("*", 5)
    jobs = producer.submit_many(["a", "b"])
    assert [job.status().state for job in jobs] == ["queued", "queued"]
    producer.submit_many(["c", "d"])


@pytest.mark.parametrize("key", ["queues", "queues:0", "queues:cursor"])
def test_queues_are_swept_beside_damaged_keys(
    producer: Client, client: redis.Redis, namespace: str, key: str
) -> None:
    records = JobRecords(client, namespace, 60)
    client.set(f"{namespace}:{key}", "another type")
    records.sweep_queues()
    producer.submit("a").cancel()
    assert records.sweep_queues() == (1, 1)


@pytest.mark.parametrize("weight", [0, 1e-320, 1e-7, float("nan"), 1_000_001])
def test_a_weight_that_no_claim_could_use_is_refused(
    client: redis.Redis, namespace: str, weight: float
) -> None:
    limit = "must be at least 0.000001 and at most 1,000,000"
    with pytest.raises(InvalidRequest, match=f"weight=.*: {limit}"):
        Tenants(Lanes.single(client, namespace)).set_weight("gold", weight)


@pytest.mark.parametrize("key", ["queues", "queues:0"])
def test_due_messages_are_requeued_once_beside_damaged_keys(
    client: redis.Redis, namespace: str, group: list[QueueGroup], key: str
) -> None:
    records = JobRecords(client, namespace, 60)
    client.set(f"{namespace}:{key}", "another type")
    queue = list_key(group[0].queues[0], 0)
    client.zadd(f"{namespace}:later", {f"{queue}\0a": 1, "no entry": 2})
    for _ in range(2):
        records.requeue_due()
    assert client.lrange(queue, 0, -1) == ["a"]
    assert client.zcard(f"{namespace}:later") == 0


@pytest.mark.parametrize(
    "damage",
    [
        *map(_string, ["dead", "dead:letters", "dead:totals"]),
        *(_field("dead:totals", "bytes", value) for value in ("abc", "1.5", str(2**63 - 1))),
        _field("dead:totals", "dropped", "abc"),
    ],
)
def test_a_dead_letter_is_added_beside_damaged_keys(
    client: redis.Redis, namespace: str, damage: Damage
) -> None:
    letters = DeadLetters(client, namespace, max_bytes=1_000)
    damage(client, namespace)
    for number in range(3):
        letters.add("q", f"{number}" * 300, code="message_rejected", reason="why", deliveries=1)
    assert letters.read()[0].message[0] == "2"


def test_an_id_of_a_job_that_names_an_error_of_redis_is_no_outage(
    client: redis.Redis, namespace: str
) -> None:
    client.set(f"{namespace}:job:NOPERM", "another type")
    pipe = client.pipeline(transaction=False)
    pipe.hget(f"{namespace}:job:NOPERM", "state")
    with pytest.raises(redis.ResponseError, match=r"NOPERM.* caused error: WRONGTYPE") as wrong:
        pipe.execute()
    assert not is_outage(wrong.value)
    assert is_outage(redis.ResponseError("Command # 1 (x) of pipeline caused error: NOPERM no"))


def test_an_offer_that_cannot_be_read_hides_no_other(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    offer = offer_of(FakeEngine().info).model_dump_json()
    client.hset(f"{namespace}:catalogue", mapping={"fake": offer, "x": "{}", "y": offer[:-9]})
    assert list(producer.offers()) == ["fake"]
    producer.submit("a cat", model="fake")


def test_a_limit_that_is_no_number_limits_nobody(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    client.hset(f"{namespace}:limits", "*", "abc")
    producer.submit("a cat")
    client.delete(f"{namespace}:limits")
    client.set(f"{namespace}:limits", "another type")
    producer.submit("a cat")


def test_a_job_that_is_delayed_is_submitted_again_without_a_second_message(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    job = producer.submit("a cat", id="cat-1", seed=1)
    [queue] = client.scan_iter(f"{namespace}.*")
    client.delete(queue)
    record = f"{namespace}:job:cat-1"
    client.hset(record, mapping={"retry_at": time.time() + 60, "submitted_at": 1})
    assert producer.submit("a cat", id="cat-1", seed=1) == job
    assert not producer.resend("cat-1")
    client.hset(record, "retry_at", 1)
    assert producer.resend("cat-1")
    assert client.llen(queue) == 1


def test_an_entry_of_the_outbox_under_another_id_is_given_up(
    client: redis.Redis, namespace: str
) -> None:
    outbox = Outbox(client, namespace, 60)
    fields = {"id": "B", "job_id": "B", "url": "http://a.example/x", "body": "{}"}
    surrogate = {**fields, "id": "C", "url": "http://a.example/\ud800"}
    for name, text in {"A": json.dumps(fields), "C": json.dumps(surrogate)}.items():
        client.hset(f"{namespace}:outbox:messages", name, text)
        client.zadd(f"{namespace}:outbox", {name: 0})
    client.execute_command("ZADD", f"{namespace}:outbox", 0, b"\xff")
    client.execute_command("HSET", f"{namespace}:outbox:messages", b"\xff", "{")
    assert outbox.claim(8, 60) == []
    assert outbox.count_waiting() == 0


@pytest.mark.parametrize("events", [("started",), ("progress",), ("succeeded",)])
@pytest.mark.parametrize("key", ["outbox", "outbox:messages"])
def test_a_job_runs_and_its_callbacks_are_added_beside_damaged_keys(
    client: redis.Redis, namespace: str, key: str, events: tuple[str, ...]
) -> None:
    records = JobRecords(client, namespace, 60)
    request = JobRequest.parse(
        {"prompt": "a", "callback_url": "https://hooks.example/x", "callback_events": events}
    )
    records.submit([("j", request)])
    client.set(f"{namespace}:{key}", "another type")
    started = build_callback(CallbackEvent.STARTED, "j", request)
    assert start_attempt(records, "j", "a", callback=started).happened
    progress = build_callback(CallbackEvent.PROGRESS, "j", request, step=2, steps=4)
    report = ProgressReport(job_id="j", attempt="a", step=2, steps=4, callback=progress)
    assert records.record_progress(report) == [AttemptVerdict.GO_ON]
    result = result_of_one_image()
    succeeded = build_callback(CallbackEvent.SUCCEEDED, "j", request, result=result)
    assert records.succeed("j", "a", result, succeeded).happened
    [message] = Outbox(client, namespace).claim(8, 60)
    assert message.id.startswith(f"j.{events[0]}")


@pytest.mark.parametrize(
    "key", ["outbox", "outbox:messages", "outbox:given-up", "outbox:answered", "outbox:log:j"]
)
@pytest.mark.parametrize("verdict", [DeliveryVerdict.DELIVERED, DeliveryVerdict.GONE])
def test_callbacks_are_sent_beside_damaged_keys(
    client: redis.Redis, namespace: str, key: str, verdict: DeliveryVerdict
) -> None:
    outbox = Outbox(client, namespace, 60)
    client.set(f"{namespace}:{key}", "another type")
    assert outbox.claim(8, 60) == []
    outbox.add(OutboxMessage(id="j.failed", job_id="j", url="http://a.example/x", body="{}"))
    [message] = outbox.claim(8, 60)
    outcome = DeliveryOutcome(verdict=verdict, status=204)
    end = outbox.mark_delivered if verdict is DeliveryVerdict.DELIVERED else outbox.give_up
    end(message, outcome)
    assert outbox.count_waiting() == 0
    assert [each.verdict for each in outbox.attempts_of("j")] == [verdict]
    assert outbox.answered_lately(["a.example"]) == {"a.example"}
    assert len(outbox.entries()) == (verdict is DeliveryVerdict.GONE)


def test_a_damaged_run_hides_no_stalled_run(client: redis.Redis, namespace: str) -> None:
    runs = RunRecords(client, namespace, 60)
    for number, run in enumerate(("text", "damaged", "good")):
        client.zadd(f"{namespace}:bulk", {run: number})
    client.set(f"{namespace}:bulk:text", "another type")
    for run, moved_at in (("damaged", "x"), ("good", "1")):
        client.hset(f"{namespace}:bulk:{run}", mapping={"state": "running", "moved_at": moved_at})
    found = {runs.stalled.find(30), runs.stalled.find(30)}
    assert "good" in found


def test_a_run_whose_number_of_shards_is_damaged_has_none(
    client: redis.Redis, namespace: str
) -> None:
    runs = RunRecords(client, namespace, 60)
    client.hset(f"{namespace}:bulk:r", mapping={"destination": "file:///d/", "shards": "x"})
    assert runs.destination_and_shards("r") == ("file:///d/", 0)
