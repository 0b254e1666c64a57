"""The executor handles unexpected errors while a job is finished."""

from collections.abc import Callable

import numpy as np
import pytest
import redis

from imagefleet.shared.errors import ConfigurationError, LeaseLost, WorkerError
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import delayed_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.storage.base import StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import plan_attempt
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.support.records import start_attempt

REQUEST = JobRequest.parse({"prompt": "a", "seed": 1})


class FailingStore(MemoryStore):
    """Raises `error` when an image of a job is stored; with `always`, at every put."""

    def __init__(self, error: Exception, *, always: bool = False) -> None:
        super().__init__()
        self._error, self._always = error, always

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        if self._always or key.startswith("jobs/"):
            raise self._error
        return super().put(key, data, content_type)


Execute = Callable[[MemoryStore], JobStatus]


@pytest.fixture
def execute(client: redis.Redis, namespace: str) -> Execute:
    """Return a function that executes one generated job with a store and returns its status."""

    def execute(store: MemoryStore) -> JobStatus:
        records, engine = JobRecords(client, namespace, 3600), FakeEngine()
        claims = Claims(
            no_retry_client=client,
            retrying_client=client,
            namespace=namespace,
            worker="w",
            lease_s=60,
        )
        claims.lease.acquire()
        records.submit([("j", REQUEST)])
        queue = queue_of(namespace, REQUEST, by_compile_key=True)
        [claimed] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
        attempt = plan_attempt("j", REQUEST, engine.info)
        attempt.tag, attempt.token = claimed.tag, claims.attempt(claimed.tag)
        start_attempt(records, "j", attempt.token, claim=(claims.key, claimed.tag))
        attempt.deliver(0, np.zeros((64, 64, 3), np.uint8))
        in_flight = InFlight()
        in_flight.add(claimed.tag, attempt)
        executor = JobExecutor(
            in_flight,
            records,
            claims,
            JobFinisher(store, records, engine, "w", retry_time_s=0),
            RetryPolicy(records, claims, DeadLetters(client, namespace), max_retries=2),
            HealthCheck(engine, store, quarantine_s=60),
        )
        with pytest.raises(LeaseLost):
            executor.execute("j", claimed.tag)
        assert not client.exists(claims.key)  # the message waits for another attempt
        return records.get("j")

    return execute


def _queued(client: redis.Redis, namespace: str) -> int:
    queue = queue_of(namespace, REQUEST, by_compile_key=True)
    return client.llen(list_key(queue, REQUEST.priority))


def test_a_job_is_retried_after_an_unexpected_error(
    execute: Execute, client: redis.Redis, namespace: str
) -> None:
    status = execute(FailingStore(ZeroDivisionError("unexpected")))
    assert (status.state, status.retries) == (State.QUEUED, 1)
    assert client.zcard(delayed_key(namespace)) == 1


def test_an_error_of_redis_requeues_the_job_without_counting_a_retry(
    execute: Execute, client: redis.Redis, namespace: str
) -> None:
    status = execute(FailingStore(redis.exceptions.NoScriptError("NOSCRIPT")))
    assert status.retries == 0
    assert status.error is None
    assert _queued(client, namespace) == 1


@pytest.mark.parametrize("error", [ConfigurationError("no credentials"), WorkerError("odd")])
def test_a_worker_whose_store_fails_everything_requeues_its_jobs(
    execute: Execute, client: redis.Redis, namespace: str, error: Exception
) -> None:
    status = execute(FailingStore(error, always=True))
    assert (status.state, status.retries, status.error) == (State.QUEUED, 0, None)
    assert _queued(client, namespace) == 1
