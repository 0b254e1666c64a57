"""Recovery, refusals and sweeps leave alone what is still needed or what others run."""

import json

import pytest
import redis

from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.celery_message import job_message
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.records import start_attempt

REQUEST = JobRequest.parse({"prompt": "a", "seed": 1})


def _submit(records: JobRecords, namespace: str, job_id: str = "j") -> str:
    """Submit a job for every worker; return the list that holds its message."""
    records.submit([(job_id, REQUEST)], by_compile_key=False)
    return f"{namespace}.default.native\x06\x163"


def _group(queue: str) -> list[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(queue.partition("\x06")[0],))]


def test_a_sweep_keeps_the_message_of_a_plain_celery_job_that_has_ended(
    client: redis.Redis, namespace: str
) -> None:
    """Its worker may have died before it stored Celery's result or sent the chain."""
    records, queue = JobRecords(client, namespace, 3600), f"{namespace}.other.native"
    for job_id in ("ours", "plain"):
        envelope = json.loads(job_message(job_id, REQUEST, queue))
        if job_id == "plain":
            del envelope["headers"]["recorded"]
        client.rpush(queue, json.dumps(envelope))
        client.hset(f"{namespace}:job:{job_id}", "state", "succeeded")
    client.sadd(f"{namespace}:queues", queue)
    assert records.sweep_queues() == (0, 1)
    [left] = client.lrange(queue, 0, -1)
    assert json.loads(left)["headers"]["id"] == "plain"


def test_a_sweep_survives_a_record_that_is_not_a_hash(client: redis.Redis, namespace: str) -> None:
    records, queue = JobRecords(client, namespace, 3600), f"{namespace}.other.native"
    client.set(f"{namespace}:job:odd", "not a hash")
    client.rpush(queue, job_message("odd", REQUEST, queue))
    client.sadd(f"{namespace}:queues", queue)
    assert records.sweep_queues() == (0, 0)
    assert client.llen(queue) == 1


def test_many_ended_messages_of_a_list_are_dropped_and_the_others_keep_their_order(
    client: redis.Redis, namespace: str
) -> None:
    records, queue = JobRecords(client, namespace, 3600), f"{namespace}.other.native"
    for number in range(100):
        client.lpush(queue, job_message(f"j{number}", REQUEST, queue))
        if number % 3:
            client.hset(f"{namespace}:job:j{number}", "state", "cancelled")
    client.sadd(f"{namespace}:queues", queue)
    assert records.sweep_queues() == (0, 66)
    ids = [json.loads(each)["headers"]["id"] for each in client.lrange(queue, 0, -1)]
    assert ids == [f"j{number}" for number in reversed(range(0, 100, 3))]


def test_an_acknowledgement_during_a_drain_counts_no_delivery(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pool thread may end between the requeue of its record and that of its message."""
    records = JobRecords(client, namespace, 3600)
    queue = _submit(records, namespace)
    claims = make_claims("w")
    [claimed] = claims.claim(_group(queue), 1)
    start_attempt(records, "j", claimed.attempt, claim=(claims.key, claimed.tag))
    claims.announce_requeue([claimed.tag])
    records.requeue(("j", claimed.attempt))
    claims.ack(claimed.tag, records.key("j"))
    assert "this does not count as a delivery" in caplog.text
    assert client.llen(queue) == 1
    assert client.hgetall(f"{namespace}:deliveries") == {}
    assert claims.requeue(claimed.tag) == 0
    [again] = claims.claim(_group(queue), 1)
    assert again.deliveries == 1


def test_an_unreadable_message_does_not_fail_the_running_job_it_names(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    records, letters = JobRecords(client, namespace, 3600), DeadLetters(client, namespace)
    queue = _submit(records, namespace, "victim")
    worker, other = make_claims("w1"), make_claims("w2")
    [running] = worker.claim(_group(queue), 1)
    start_attempt(records, "victim", running.attempt, claim=(worker.key, running.tag))
    client.lpush(queue, json.dumps({"headers": {"task": "imagefleet.render", "id": "victim"}}))
    [claimed] = other.claim(_group(queue), 1)
    Refuser(other, records, letters).reject_message(claimed, MessageRejected("no body"))
    status = records.get("victim")
    assert (status.state, records.running_attempt("victim")) == (State.RUNNING, running.attempt)
    assert [letter.job_id for letter in letters.read()] == ["victim"]
    assert not client.exists(other.key)


def test_an_unreadable_message_fails_a_job_whose_worker_is_gone(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    records, letters = JobRecords(client, namespace, 3600), DeadLetters(client, namespace)
    queue = _submit(records, namespace)
    dead, other = make_claims("w1"), make_claims("w2")
    [running] = dead.claim(_group(queue), 1)
    start_attempt(records, "j", running.attempt, claim=(dead.key, running.tag))
    client.delete(dead.key)
    headers = {"task": "imagefleet.render", "id": "j", "recorded": True}
    client.lpush(queue, json.dumps({"headers": headers}))
    [claimed] = other.claim(_group(queue), 1)
    Refuser(other, records, letters).reject_message(claimed, MessageRejected("no body"))
    assert records.get("j").state is State.FAILED


def test_a_queue_whose_key_is_not_a_list_stops_no_claim(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    records = JobRecords(client, namespace, 3600)
    queue = _submit(records, namespace)
    client.set(f"{namespace}.default.native\x06\x166", "not a list")
    claims = make_claims("w")
    assert len(claims.claim(_group(queue), 8)) == 1
    assert claims.requeue_orphans() == 0


def test_job_claims_and_shard_claims_rotate_through_many_queues_by_themselves(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    """With one cursor for both, each kind of claim could look at the same half for ever."""
    plain, bulk = f"{namespace}.shapes.64x64", f"{namespace}.bulk.shapes.64x64"
    others = [f"{namespace}.other.64x64@t{number}" for number in range(1060)]
    tenants = [f"{plain}@tenant{number}" for number in range(32)]
    client.sadd(f"{namespace}:queues", *others, *tenants)
    for queue in others:
        client.lpush(queue, "waits for another model")
    for queue in tenants:
        client.lpush(queue, job_message(queue.rpartition("@")[2], REQUEST, queue))
    claims = make_claims("w")
    jobs = [QueueGroup(name="64x64", queues=(plain,))]
    shards = [QueueGroup(name="64x64", queues=(bulk,), bulk=True)]
    found = 0
    for _ in range(100):
        found += len(claims.claim(jobs, 8))
        claims.claim(shards, 1, max_messages=1)
    assert found == len(tenants)
