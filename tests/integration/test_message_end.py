"""The message of a job ends with its record in one step: all of it, or nothing of it."""

import hashlib
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.model import CallbackEvent
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import deliveries_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.signature import sign
from imagefleet.worker.celery_app.results import celery_result, message_end
from imagefleet.worker.jobs.message_end import CeleryResult, MessageEnd
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.integration.conftest import MakeClaims
from tests.support.records import result_of_one_image, start_attempt

STORED = "stored by celery"


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


@pytest.fixture
def claims(make_claims: MakeClaims) -> Claims:
    return make_claims("w")


class Job:
    """One claimed and running job, and the end of its message."""

    def __init__(self, client: redis.Redis, namespace: str, records: JobRecords, claims: Claims):
        self.records, self.result_key = records, f"{namespace}:celery-task-meta-j"
        records.submit([("j", JobRequest.parse({"prompt": "a"}))])
        queue = f"{namespace}.default.native"
        [self.claimed] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
        claim = (claims.key, self.claimed.tag)
        start = StartRequest(job_id="j", attempt=self.claimed.attempt, claim=claim)
        [started] = records.start(start)
        assert started.happened
        stored = CeleryResult(key=self.result_key, text=STORED, keep_s=60)
        self.end = MessageEnd(claims=claims, tag=self.claimed.tag, store=lambda _: stored)

    def succeed(self, attempt: str = "") -> TransitionResult:
        result = result_of_one_image()
        transition = self.records.succeed(
            "j",
            attempt or self.claimed.attempt,
            result,
            None,
            acknowledgement=self.end.acknowledgement(result),
        )
        self.end.note(transition)
        return transition


@pytest.fixture
def job(client: redis.Redis, namespace: str, records: JobRecords, claims: Claims) -> Job:
    return Job(client, namespace, records, claims)


def test_a_success_stores_the_result_and_releases_the_claim(
    job: Job, claims: Claims, client: redis.Redis, namespace: str
) -> None:
    client.hset(deliveries_key(namespace), _sha1(job), 1)
    listener = client.pubsub()
    listener.subscribe(job.result_key)
    assert job.succeed().acknowledged
    assert client.get(job.result_key) == STORED
    assert 0 < client.ttl(job.result_key) <= 60
    assert not client.exists(claims.key, deliveries_key(namespace))
    assert job.end.happened
    assert not claims.holds(job.claimed.tag)
    assert claims.requeue_orphans() == 0
    heard = [listener.get_message(timeout=60) for _ in range(2)]
    assert heard[1] is not None
    assert heard[1]["data"] == STORED
    listener.close()


def test_another_attempt_ends_no_message(job: Job, claims: Claims, client: redis.Redis) -> None:
    transition = job.succeed("another")
    assert not transition.happened
    assert not transition.acknowledged
    assert not client.exists(job.result_key)
    assert claims.holds(job.claimed.tag)
    assert client.hexists(claims.key, job.claimed.tag)


def test_a_job_whose_claim_is_gone_succeeds_without_a_result_for_celery(
    job: Job, claims: Claims, client: redis.Redis
) -> None:
    """Celery stores it, and its acknowledgement finds nothing."""
    client.delete(claims.key)
    transition = job.succeed()
    assert transition.happened
    assert not transition.acknowledged
    assert not client.exists(job.result_key)
    assert not job.end.happened


def test_a_call_whose_answer_was_lost_changes_nothing_when_it_is_repeated(
    job: Job, client: redis.Redis
) -> None:
    job.succeed()
    client.delete(job.result_key)
    again = job.succeed()
    assert (again.happened, again.attempt) == (False, job.claimed.attempt)
    assert not again.acknowledged
    assert not client.exists(job.result_key)


def test_claims_that_cannot_be_read_cost_no_success(
    job: Job, claims: Claims, client: redis.Redis
) -> None:
    client.set(claims.key, "not a hash")
    transition = job.succeed()
    assert transition.happened
    assert not transition.acknowledged


def test_a_message_whose_end_was_lost_with_another_server_is_queued_again(
    job: Job, claims: Claims, client: redis.Redis, namespace: str
) -> None:
    """Record and claim of the server that took over are as they were before the success."""
    keys = [claims.key, f"{namespace}:job:j"]
    before = [client.hgetall(key) for key in keys]
    assert job.succeed().acknowledged
    for key, fields in zip(keys, before, strict=True):
        client.delete(key)
        client.hset(key, mapping={str(name): value for name, value in fields.items()})
    assert claims.requeue_orphans() == 1
    assert client.llen(job.claimed.list_key) == 1


def test_a_success_that_a_failover_lost_is_reported_again_under_the_same_webhook_id(
    records: JobRecords, claims: Claims, client: redis.Redis, namespace: str
) -> None:
    """The server that took over has record and message as before the success."""
    request = JobRequest.parse({"prompt": "a", "callback_url": "https://hooks.example/x"})
    records.submit([("j", request)])
    record, outbox = f"{namespace}:job:j", Outbox(client, namespace)
    before = client.hgetall(record)
    sent: list[OutboxMessage] = []
    for timings in ({"denoise": 1.5}, {"denoise": 1.25}):
        client.delete(record)
        client.hset(record, mapping={str(name): value for name, value in before.items()})
        assert start_attempt(records, "j", f"attempt {timings}").happened
        result = result_of_one_image().model_copy(update={"timings": timings})
        event = build_callback(CallbackEvent.SUCCEEDED, "j", request, result=result)
        assert records.succeed("j", f"attempt {timings}", result, event).happened
        sent += outbox.claim(1, 60)
        outbox.mark_delivered(sent[-1], DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED))
    assert len({message.body for message in sent}) == 2
    assert len({message.occurrence for message in sent}) == 1
    headers = [
        sign(each.event_id, each.body, [], datetime.now(UTC), each.occurrence) for each in sent
    ]
    assert headers[0]["webhook-id"] == headers[1]["webhook-id"]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
def test_the_result_is_what_celery_would_store(redis_server: LocalRedisServer) -> None:
    app = Celery("peer", backend=celery_url(redis_server.url), set_as_current=False)
    result = result_of_one_image().model_dump(mode="json")
    backend = app.backend
    backend.store_result("their own", result, "SUCCESS")
    theirs = backend.get(backend.get_key_for_task("their own"))
    ours = celery_result(backend, "their own", result)
    assert _without_date(ours.text) == _without_date(theirs)
    assert ours.key.encode() == backend.get_key_for_task("their own")
    assert ours.keep_s == backend.expires


def _without_date(stored: Any) -> dict[str, Any]:
    meta = dict(json.loads(stored))
    assert meta.pop("date_done")
    return meta


def _sha1(job: Job) -> str:
    return hashlib.sha1(job.claimed.message.encode()).hexdigest()


@pytest.mark.parametrize("part", ["callbacks", "chain", "chord", "group"])
def test_celery_itself_ends_a_message_with_a_workflow(part: str, claims: Claims) -> None:
    """It sends the rest of the workflow after the result, and must not lose it if it dies then."""
    parts = dict.fromkeys(["callbacks", "chain", "chord", "group"])
    plain = SimpleNamespace(
        request=SimpleNamespace(**parts, ignore_result=False, id="j"), backend=None
    )
    assert message_end(plain, claims, "1.0") is not None
    task = SimpleNamespace(request=SimpleNamespace(**{**parts, part: ["x"]}, ignore_result=False))
    assert message_end(task, claims, "1.0") is None


def test_a_result_that_the_producer_does_not_want_is_not_stored(claims: Claims) -> None:
    parts = dict.fromkeys(["callbacks", "chain", "chord", "group"])
    task = SimpleNamespace(request=SimpleNamespace(**parts, ignore_result=True))
    end = message_end(task, claims, "1.0")
    assert end is not None
    assert end.acknowledgement(result_of_one_image()).result == ""
