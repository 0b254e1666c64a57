"""A real worker receives messages whose jobs have ended, run elsewhere, or have no record."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from imagefleet import Client
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until
from tests.support.receiver import Receiver
from tests.support.records import start_attempt

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, 3600)


@pytest.fixture
def queue(namespace: str) -> str:
    return list_key(f"{namespace}.default.native", 3)


def _send_with_celery(
    server: LocalRedisServer, namespace: str, arguments: Mapping[str, Any], **options: int
) -> AsyncResult:
    """Send a job with Celery alone, which creates no record."""
    with Celery(broker=celery_url(server.url), set_as_current=False) as app:
        return app.send_task(
            TASK_NAME,
            kwargs=arguments,
            queue=f"{namespace}.default.native",
            **options,
        )


def _set_deliveries(client: redis.Redis, namespace: str, message: str, deliveries: int) -> None:
    client.hset(f"{namespace}:deliveries", hashlib.sha1(message.encode()).hexdigest(), deliveries)


def test_a_requeued_job_whose_record_says_running_can_still_be_refused(
    start: StartWorker, producer: Client, records: JobRecords
) -> None:
    job = producer.submit("a", num_inference_steps=40)
    start_attempt(records, job.id, "an attempt that was requeued uncounted")
    start(IMAGEFLEET_MAX_NUM_INFERENCE_STEPS="20")
    assert finish(producer, [job]) == {State.FAILED}


def test_a_succeeded_job_is_not_refused_when_its_message_comes_again(
    start: StartWorker,
    producer: Client,
    records: JobRecords,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
    queue: str,
) -> None:
    job = producer.submit("a")
    _set_deliveries(client, namespace, str(client.lindex(queue, 0)), 4)
    start_attempt(records, job.id, "the fourth worker died just before its ack", 4)
    records.succeed(job.id, "the fourth worker died just before its ack", RESULT, None)
    start()
    url = celery_url(redis_server.url)
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        assert app.AsyncResult(job.id).get(timeout=900)["model"] == "m"
    assert job.status().result == RESULT
    assert not producer.dead_letters.read()


def test_a_cancelled_job_is_not_generated_after_its_record_expired(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    job = producer.submit("cancelled long before a worker claimed it")
    job.cancel()
    client.delete(f"{namespace}:job:{job.id}")  # as EXPIRE does
    start()
    assert finish(producer, [producer.submit("behind it")]) == {State.SUCCEEDED}
    assert not client.exists(f"{namespace}:job:{job.id}")
    assert not (tmp_path / "store" / "jobs" / job.id).exists()


def test_a_draining_worker_cancels_jobs_with_a_cancel_request_instead_of_requeueing_them(
    start: StartWorker, producer: Client, queue: str, client: redis.Redis
) -> None:
    worker = start(IMAGEFLEET_MODEL="fake:seconds=8,capacity=4")
    jobs = producer.submit_many(["a", "b"], num_images_per_prompt=4, num_inference_steps=2)
    # The worker prefetches the second job while the devices run the last step of the first.
    until(lambda: all(job.status().state is State.RUNNING for job in jobs))
    assert jobs[1].cancel() is State.RUNNING
    worker.terminate()
    assert jobs[1].status().state is State.CANCELLED
    assert not client.exists(queue)


def test_a_delayed_message_is_not_in_flight_and_does_not_block_a_suspect(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
    queue: str,
) -> None:
    _send_with_celery(
        redis_server, namespace, pack(JobRequest(prompt="tomorrow")), countdown=86_400
    )
    worker = start()
    until(lambda: client.zcard(f"{namespace}:later"))
    worker.freeze()
    suspect = producer.submit("a suspect")
    _set_deliveries(client, namespace, str(client.lindex(queue, 0)), 2)
    worker.thaw()
    assert finish(producer, [suspect]) == {State.SUCCEEDED}
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    assert client.zcard(f"{namespace}:later") == 1


def test_a_celery_job_with_too_many_deliveries_gets_a_failed_record(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    redis_server: LocalRedisServer,
    namespace: str,
    queue: str,
) -> None:
    sent = _send_with_celery(redis_server, namespace, pack(JobRequest(prompt="a")), priority=3)
    _set_deliveries(client, namespace, str(client.lindex(queue, 0)), 4)
    start()
    until(lambda: producer.dead_letters.read())
    assert finish(producer, [producer.get(sent.id)]) == {State.FAILED}
    error = producer.get(sent.id).status().error
    assert error is not None
    assert error.code == "too_many_deliveries"


@pytest.mark.parametrize("packed", [False, True])
def test_a_refused_celery_job_keeps_its_valid_fields_and_sends_its_callback(
    start: StartWorker,
    producer: Client,
    redis_server: LocalRedisServer,
    namespace: str,
    *,
    packed: bool,
) -> None:
    with Receiver() as receiver:
        start(IMAGEFLEET_CALLBACK_ALLOW="127.0.0.0/8")
        fields = {"prompt": "a star", "tenant": "gold", "callback_url": receiver.url, "seed": -1}
        arguments = {"version": 1, "request": fields} if packed else fields
        sent = _send_with_celery(redis_server, namespace, arguments, priority=3)
        [delivery] = receiver.wait_for(1)
    assert json.loads(delivery.body)["type"] == "job.failed"
    status = producer.get(sent.id).status()
    assert status.error is not None
    assert status.error.code == "invalid_request"
    assert (status.request.prompt, status.request.tenant) == ("a star", "gold")
