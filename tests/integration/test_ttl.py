"""A job with a `ttl` that no worker starts in time fails as `expired`; a started job never does."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from imagefleet import Client, InvalidRequest, JobFailed, State
from imagefleet.shared.jobs.celery_message import task_arguments
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_origin import MessageOrigin
from imagefleet.shared.jobs.model import JobError
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import job_key, outbox_messages_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest, TransitionResult
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.jobs import finish
from tests.support.processes import StartWorker
from tests.support.records import start_attempt

LONG_AGO = 1
EVENTS = ("started", "failed", "succeeded")


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, 3600)


def _submit_long_ago(
    client: redis.Redis, namespace: str, records: JobRecords, **parameters: Any
) -> JobRequest:
    request = JobRequest.parse({"prompt": "a", "seed": 1, **parameters})
    records.submit([("j", request)])
    client.hset(job_key(namespace, "j"), "submitted_at", LONG_AGO)
    return request


def test_a_worker_ends_a_job_that_it_gets_too_late(
    start: StartWorker, producer: Client, client: redis.Redis, records: JobRecords, namespace: str
) -> None:
    callback = {"callback_url": "https://hooks.invalid/", "callback_events": EVENTS}
    late = producer.submit("late", ttl=60, **callback)  # type: ignore[arg-type]
    started = producer.submit("started before", ttl=60)
    in_time = producer.submit("in time", ttl=3600)
    start_attempt(records, started.id, "an attempt whose worker died")
    for job in (late, started):
        client.hset(job_key(namespace, job.id), "submitted_at", LONG_AGO)
    start()
    assert finish(producer, [started, in_time], timeout=900) == {State.SUCCEEDED}
    with pytest.raises(JobFailed, match="no worker started the job within ttl=60 s") as failed:
        late.result(timeout=900)
    assert failed.value.failure_code == "expired"
    assert late.status().started_at is None
    assert not producer.dead_letters.read()
    callbacks = client.hkeys(outbox_messages_key(namespace))
    assert callbacks == [f"{late.id}.failed"]


@pytest.mark.parametrize(("deliveries", "expired"), [(None, True), (0, False), (1, False)])
def test_only_a_job_that_never_started_expires(
    client: redis.Redis,
    namespace: str,
    records: JobRecords,
    deliveries: int | None,
    expired: bool,
) -> None:
    _submit_long_ago(client, namespace, records)
    if deliveries is not None:  # 0: its dead letter was redriven
        client.hset(job_key(namespace, "j"), "deliveries", deliveries)
    [transition] = records.start(StartRequest(job_id="j", attempt="x", ttl_s=60))
    assert (transition.expired, transition.happened) == (expired, not expired)
    assert records.get("j").state is (State.QUEUED if expired else State.RUNNING)


def test_a_running_job_does_not_expire_although_its_record_lacks_the_deliveries(
    client: redis.Redis, namespace: str, records: JobRecords
) -> None:
    """A worker that saw it expire could not fail it, and put its message back without end."""
    _submit_long_ago(client, namespace, records)
    client.hset(job_key(namespace, "j"), mapping={"state": "running", "attempt": "host:1:a/1"})
    [transition] = records.start(StartRequest(job_id="j", attempt="x", ttl_s=60))
    assert (transition.expired, transition.happened) == (False, True)


class CancellingRecords(JobRecords):
    """The producer cancels each job just before it fails."""

    def fail(self, job_id: str, attempt: str, error: JobError, *args: Any, **kwargs: Any) -> Any:
        assert self.cancel(job_id, "", None).happened
        refused: TransitionResult = super().fail(job_id, attempt, error, *args, **kwargs)
        return refused


def test_a_late_job_that_is_cancelled_meanwhile_stays_cancelled(
    client: redis.Redis, namespace: str, make_claims: MakeClaims
) -> None:
    records, claims = CancellingRecords(client, namespace, 3600), make_claims("w")
    request = _submit_long_ago(client, namespace, records, ttl=60)
    queue = queue_of(namespace, request)
    [claimed] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
    refuser = Refuser(claims, records, DeadLetters(client, namespace))
    starter = JobStarter(claims, records, refuser, FakeEngine().info, 4)
    origin = MessageOrigin(
        job_id="j", arguments=task_arguments(claimed.message), recorded=True, request_sha1=""
    )
    message = SimpleNamespace(claimed=claimed, origin=origin, job_request=origin.read_request())
    received = SimpleNamespace(id="j", message=message, revoked=lambda: False)
    assert starter.start([received]) == [None]
    assert records.get("j").state is State.CANCELLED


def test_a_job_without_a_ttl_can_be_read_by_the_last_release(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    for ttl in (None, 2.5):
        job = producer.submit("a", ttl=ttl)
        stored = json.loads(str(client.hget(job_key(namespace, job.id), "request")))
        message = client.lpop(list_key(f"{namespace}.default.native", 3))
        sent = task_arguments(str(message))["request"]
        assert stored.get("ttl", "left out") == sent.get("ttl", "left out") == (ttl or "left out")
        assert job.status().request.ttl == ttl


@pytest.mark.parametrize(
    ("ttl", "limit"),
    [
        (0, "must be greater than 0"),
        (-1.5, "must be greater than 0"),
        (float("inf"), "must be"),
        (31_536_001, "must be less than or equal to 31536000"),
        ("soon", "must be a valid number"),
    ],
)
def test_a_wrong_ttl_is_refused(producer: Client, ttl: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        producer.submit("a", ttl=ttl)
    assert (refused.value.field, refused.value.value) == ("ttl", ttl)
