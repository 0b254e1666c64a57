"""A worker that stops requeues all its jobs, in order and in few round trips."""

import json
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.dispatcher import Dispatcher
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.job_lanes import JobLane, JobLanes
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.support.processes import until
from tests.support.records import start_attempt

REQUEST = JobRequest.parse({"prompt": "a", "seed": 1})


class LeavingWorker:
    """A worker that claims jobs and requeues them."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.records, engine = JobRecords(client, namespace, 3600), FakeEngine()
        self.claims = Claims(
            no_retry_client=client,
            retrying_client=client,
            namespace=namespace,
            worker="w",
            lease_s=60,
        )
        self.claims.lease.acquire()
        self.queue = queue_of(namespace, REQUEST)
        self.info = engine.info
        finisher = JobFinisher(MemoryStore(), self.records, engine, "w", retry_time_s=0)
        nobody: Any = None
        self._executor = JobExecutor(nobody, self.records, self.claims, finisher, nobody, nobody)
        self._client = client

    def claim_jobs(self, count: int) -> list[Attempt]:
        """Submit, claim and start `count` jobs."""
        self.records.submit([(f"job-{n:02d}", REQUEST) for n in range(count)])
        groups = [QueueGroup(name="64x64", queues=(self.queue,))]
        return [self._start_attempt(claimed) for claimed in self.claims.claim(groups, count)]

    def _start_attempt(self, claimed: Any) -> Attempt:
        job_id = json.loads(claimed.message)["headers"]["id"]
        start_attempt(self.records, job_id, claimed.attempt, claim=(self.claims.key, claimed.tag))
        return plan_attempt(job_id, REQUEST, self.info, tag=claimed.tag, token=claimed.attempt)

    def requeue(self, attempts: Sequence[Attempt]) -> None:
        self._executor.requeue(attempts)

    def waiting(self) -> list[str]:
        """Return the ids of the jobs in the queue, its head first."""
        messages = self._client.lrange(list_key(self.queue, REQUEST.priority), 0, -1)
        return [json.loads(message)["headers"]["id"] for message in reversed(messages)]


@pytest.fixture
def worker(client: redis.Redis, namespace: str) -> LeavingWorker:
    return LeavingWorker(client, namespace)


def test_requeued_jobs_return_to_the_head_in_their_order(worker: LeavingWorker) -> None:
    attempts = worker.claim_jobs(4)
    ids = [attempt.job_id for attempt in attempts]
    worker.records.submit([("later", REQUEST)])
    worker.requeue(attempts)
    assert worker.waiting() == [*ids, "later"]
    assert {status.state for status in worker.records.read(ids) if status} == {State.QUEUED}


@pytest.mark.parametrize("damaged", ["type", "retries", "submitted_at"])
def test_a_record_that_cannot_change_keeps_no_message_back(
    worker: LeavingWorker, client: redis.Redis, damaged: str
) -> None:
    attempts = worker.claim_jobs(4)
    odd = worker.records.key(attempts[1].job_id)
    if damaged == "type":
        client.delete(odd)
        client.set(odd, "not a record")
    else:
        client.hset(odd, damaged, "x")
    worker.requeue(attempts)
    assert worker.waiting() == [attempt.job_id for attempt in attempts]
    assert not client.exists(worker.claims.key)


def test_requeueing_many_jobs_takes_no_more_round_trips_than_few(
    worker: LeavingWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = []
    send = redis.connection.AbstractConnection.send_packed_command

    def counted(*args: Any, **kwargs: Any) -> None:
        trips.append(args)
        send(*args, **kwargs)

    attempts = worker.claim_jobs(33)
    worker.requeue(attempts[:1])
    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    worker.requeue(attempts[1:2])
    trips_of_one = len(trips)
    worker.requeue(attempts[2:])
    assert len(trips) == 2 * trips_of_one


def test_orphaned_claims_are_requeued_with_the_oldest_first(
    worker: LeavingWorker, client: redis.Redis, namespace: str
) -> None:
    ids = [attempt.job_id for attempt in worker.claim_jobs(12)]
    restarted = Claims(
        no_retry_client=client, retrying_client=client, namespace=namespace, worker="w", lease_s=60
    )
    assert restarted.requeue_orphans() == 12  # it does not know these claims
    assert worker.waiting() == ids


def test_messages_are_requeued_although_redis_restarts_meanwhile(
    own_redis: LocalRedisServer, namespace: str
) -> None:
    with (
        connect(own_redis.url, retries=RETRY_FOREVER) as patient,
        connect(own_redis.url) as admin,
    ):
        worker = LeavingWorker(patient, namespace)
        attempts = worker.claim_jobs(2)
        worker.claims.requeue("no tag")  # so that the server knows the script
        admin.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
        requeueing = threading.Thread(target=worker.requeue, args=[attempts])
        requeueing.start()
        until(lambda: any("b" in each["flags"] for each in admin.client_list()))
        own_redis.kill()
        own_redis.start()
        requeueing.join(timeout=900)
        ids = [attempt.job_id for attempt in attempts]
        assert worker.waiting() == ids
        assert {worker.records.get(job_id).state for job_id in ids} == {State.QUEUED}


class SlowStarter:
    """The starter starts one attempt, and calls `meanwhile` before it returns it."""

    refuser = SimpleNamespace(reject_message=None)
    add_ons: frozenset[str] = frozenset()
    reads_weights = False

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.attempt = plan_attempt("j", REQUEST, FakeEngine().info, tag="1.000000")
        self._meanwhile = meanwhile

    def start(self, requests: Sequence[Any]) -> list[Attempt]:
        self._meanwhile()
        return [self.attempt]


def _dispatcher_with(
    meanwhile: Callable[[Dispatcher], None], in_flight: InFlight
) -> tuple[Dispatcher, Attempt]:
    """Return a dispatcher with one accepted job. `meanwhile` runs while the job is starting."""
    starter: Any = SlowStarter(lambda: meanwhile(dispatcher))
    claims: Any = SimpleNamespace(claim=lambda *_, **__: [], holds=lambda tag: True, worker="w")
    nobody: Any = None
    lane = JobLane(
        claims=claims, starter=starter, in_flight=in_flight, executor=nobody, progress=nobody
    )
    dispatcher = Dispatcher(
        JobLanes.single(lane),
        4,
        RowBacklog(4),
        InputImages(MemoryStore(), AllowList()),
        max_deliveries=4,
        max_in_flight=4,
        default_steps=4,
    )
    claimed = SimpleNamespace(tag="1.000000")
    request: Any = SimpleNamespace(name="", message=SimpleNamespace(claimed=claimed))
    dispatcher.accept(request)
    return dispatcher, starter.attempt


def test_requeue_waits_for_jobs_that_are_starting() -> None:
    in_flight_jobs: list[list[Attempt]] = []

    def stop_worker(dispatcher: Dispatcher) -> None:
        dispatcher.close()
        dispatcher.release_waiting()
        in_flight_jobs.append(in_flight.attempts())

    def meanwhile(dispatcher: Dispatcher) -> None:
        stopping = threading.Thread(target=stop_worker, args=[dispatcher], daemon=True)
        stopping.start()
        stopping.join(timeout=0.5)  # without the lock it would be done by then, and miss the job
        threads.append(stopping)

    threads: list[threading.Thread] = []
    in_flight = InFlight()
    dispatcher, attempt = _dispatcher_with(meanwhile, in_flight)
    assert dispatcher.next_batch() == []
    threads[0].join(timeout=900)
    assert in_flight_jobs == [[attempt]]


def test_a_signal_handler_may_interrupt_the_dispatcher() -> None:
    def handle(dispatcher: Dispatcher) -> None:
        dispatcher.close()
        dispatcher.release_waiting()

    dispatcher, _ = _dispatcher_with(handle, InFlight())
    claiming = threading.Thread(target=dispatcher.next_batch, daemon=True)
    claiming.start()
    claiming.join(timeout=900)
    assert not claiming.is_alive()
