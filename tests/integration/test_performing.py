"""What a job's end comes to when something fails on the way that nobody thought of."""

from collections.abc import Callable

import numpy as np
import pytest
import redis

from imagefleet.shared.errors import ConfigurationError, LeaseLost, WorkerError
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import JobRequest, JobStatus, State
from imagefleet.shared.jobs.queues import later_key, list_key, queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.storage.base import StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.health import HealthCheck
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.jobs.attempt import plan_attempt
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.retry import RetryPolicy
from imagefleet.worker.queues.claims import Claims, QueueGroup
from tests.support.records import begin

REQUEST = JobRequest.parse({"prompt": "a", "seed": 1})


class Surprising(MemoryStore):
    """Raises what it was told to when a job's picture comes; with `ill`, at every other put too."""

    def __init__(self, surprise: Exception, *, ill: bool = False) -> None:
        super().__init__()
        self._surprise, self._ill = surprise, ill

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        if self._ill or key.startswith("jobs/"):
            raise self._surprise
        return super().put(key, data, content_type)


Perform = Callable[[MemoryStore], JobStatus]


@pytest.fixture
def perform(client: redis.Redis, namespace: str) -> Perform:
    """See one painted job to its end in a store; the record it leaves."""

    def perform(store: MemoryStore) -> JobStatus:
        records, engine = JobRecords(client, namespace, 3600), FakeEngine()
        claims = Claims(once=client, patient=client, namespace=namespace, worker="w", lease_s=60)
        claims.acquire_lease()
        records.submit([("j", REQUEST)])
        queue = queue_of(namespace, REQUEST, sorted_by_key=True)
        [claimed] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
        attempt = plan_attempt("j", REQUEST, engine.info)
        attempt.tag, attempt.token = claimed.tag, claims.attempt(claimed.tag)
        begin(records, "j", attempt.token, claim=(claims.key, claimed.tag))
        attempt.deliver(0, np.zeros((64, 64, 3), np.uint8))
        in_flight = InFlight()
        in_flight.add(claimed.tag, attempt)
        performer = JobExecutor(
            in_flight,
            records,
            claims,
            JobFinisher(store, records, engine, "w", patience_s=0),
            RetryPolicy(records, claims, DeadLetters(client, namespace), max_retries=2),
            HealthCheck(engine, store, quarantine_s=60),
        )
        with pytest.raises(LeaseLost):
            performer.perform("j", claimed.tag)
        assert not client.exists(claims.key)  # the message is on its way to another attempt
        return records.get("j")

    return perform


def _queued(client: redis.Redis, namespace: str) -> int:
    queue = queue_of(namespace, REQUEST, sorted_by_key=True)
    return client.llen(list_key(queue, REQUEST.priority))


def test_what_nobody_thought_of_is_tried_again(
    perform: Perform, client: redis.Redis, namespace: str
) -> None:
    status = perform(Surprising(ZeroDivisionError("of all things")))
    assert (status.state, status.retries) == (State.QUEUED, 1)
    assert client.zcard(later_key(namespace)) == 1


def test_an_error_of_redis_says_nothing_about_the_job(
    perform: Perform, client: redis.Redis, namespace: str
) -> None:
    status = perform(Surprising(redis.exceptions.NoScriptError("NOSCRIPT")))
    assert status.retries == 0
    assert status.error is None
    assert _queued(client, namespace) == 1


@pytest.mark.parametrize("surprise", [ConfigurationError("no credentials"), WorkerError("odd")])
def test_a_host_whose_store_fails_everything_fails_no_job(
    perform: Perform, client: redis.Redis, namespace: str, surprise: Exception
) -> None:
    status = perform(Surprising(surprise, ill=True))
    assert (status.state, status.retries, status.error) == (State.QUEUED, 0, None)
    assert _queued(client, namespace) == 1
