"""What a worker that leaves hands back: all of it, in order, in few round trips, come what may."""

import json
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from imagefleet.shared.jobs.model import JobRequest, State
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.dispatcher import Dispatcher
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.queues.claims import Claims, QueueGroup
from tests.support.processes import until
from tests.support.records import begin

REQUEST = JobRequest.parse({"prompt": "a", "seed": 1})


class Leaving:
    """A worker with jobs in hand, told to give them back."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.records, engine = JobRecords(client, namespace, 3600), FakeEngine()
        self.claims = Claims(
            once=client, patient=client, namespace=namespace, worker="w", lease_s=60
        )
        self.claims.acquire_lease()
        self.queue = queue_of(namespace, REQUEST)
        self.info = engine.info
        finisher = JobFinisher(MemoryStore(), self.records, engine, "w", patience_s=0)
        nobody: Any = None
        self._performer = JobExecutor(nobody, self.records, self.claims, finisher, nobody, nobody)
        self._client = client

    def take(self, count: int) -> list[Attempt]:
        """So many new jobs, in hand and begun."""
        self.records.submit([(f"job-{n:02d}", REQUEST) for n in range(count)])
        groups = [QueueGroup(name="64x64", queues=(self.queue,))]
        return [self._begun(claimed) for claimed in self.claims.claim(groups, count)]

    def _begun(self, claimed: Any) -> Attempt:
        job_id = json.loads(claimed.message)["headers"]["id"]
        begin(self.records, job_id, claimed.attempt, claim=(self.claims.key, claimed.tag))
        return plan_attempt(job_id, REQUEST, self.info, tag=claimed.tag, token=claimed.attempt)

    def requeue(self, attempts: Sequence[Attempt]) -> None:
        self._performer.requeue(attempts)

    def waiting(self) -> list[str]:
        """Ids of the jobs in the queue, its head first."""
        messages = self._client.lrange(list_key(self.queue, REQUEST.priority), 0, -1)
        return [json.loads(message)["headers"]["id"] for message in reversed(messages)]


@pytest.fixture
def leaving(client: redis.Redis, namespace: str) -> Leaving:
    return Leaving(client, namespace)


def test_jobs_go_back_to_the_head_in_their_order(leaving: Leaving) -> None:
    attempts = leaving.take(4)
    ids = [attempt.job_id for attempt in attempts]
    leaving.records.submit([("later", REQUEST)])
    leaving.requeue(attempts)
    assert leaving.waiting() == [*ids, "later"]
    assert {status.state for status in leaving.records.read(ids) if status} == {State.QUEUED}


def test_a_record_that_cannot_be_moved_keeps_nobody_s_message(
    leaving: Leaving, client: redis.Redis
) -> None:
    attempts = leaving.take(4)
    client.delete(odd := leaving.records.key(attempts[1].job_id))
    client.set(odd, "not a record")
    leaving.requeue(attempts)
    assert leaving.waiting() == [attempt.job_id for attempt in attempts]
    assert not client.exists(leaving.claims.key)


def test_many_jobs_take_no_more_round_trips_than_few(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = []
    send = redis.connection.AbstractConnection.send_packed_command

    def counted(*args: Any, **kwargs: Any) -> None:
        trips.append(args)
        send(*args, **kwargs)

    attempts = leaving.take(33)
    leaving.requeue(attempts[:1])
    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    leaving.requeue(attempts[1:2])
    of_one = len(trips)
    leaving.requeue(attempts[2:])
    assert len(trips) == 2 * of_one


def test_strays_go_back_the_oldest_foremost(
    leaving: Leaving, client: redis.Redis, namespace: str
) -> None:
    ids = [attempt.job_id for attempt in leaving.take(12)]
    forgetful = Claims(once=client, patient=client, namespace=namespace, worker="w", lease_s=60)
    assert forgetful.requeue_orphans() == 12  # as if the answers to its claims had got lost
    assert leaving.waiting() == ids


def test_a_server_that_restarts_meanwhile_gets_the_messages_back(
    own_redis: LocalRedisServer, namespace: str
) -> None:
    with (
        connect(own_redis.url, retries=RETRY_FOREVER) as patient,
        connect(own_redis.url) as admin,
    ):
        leaving = Leaving(patient, namespace)
        attempts = leaving.take(2)
        leaving.claims.requeue("nothing")  # the server has seen the script
        admin.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
        going = threading.Thread(target=leaving.requeue, args=[attempts])
        going.start()
        until(lambda: any("b" in each["flags"] for each in admin.client_list()))
        own_redis.kill()
        own_redis.start()
        going.join(timeout=60)
        ids = [attempt.job_id for attempt in attempts]
        assert leaving.waiting() == ids
        assert {leaving.records.get(job_id).state for job_id in ids} == {State.QUEUED}


class SlowStarter:
    """Begins an attempt, and lets something happen before it says so."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.attempt = plan_attempt("j", REQUEST, FakeEngine().info, tag="1.000000")
        self._meanwhile = meanwhile

    def begin(self, requests: Sequence[Any]) -> list[Attempt]:
        self._meanwhile()
        return [self.attempt]


def _intake_with(
    meanwhile: Callable[[Dispatcher], None], in_flight: InFlight
) -> tuple[Dispatcher, Attempt]:
    """One job comes in with the next batch; `meanwhile` it is being begun."""
    beginner: Any = SlowStarter(lambda: meanwhile(intake))
    claims: Any = SimpleNamespace(claim=lambda *_, **__: [], holds=lambda tag: True)
    intake = Dispatcher(
        claims,
        beginner,
        4,
        in_flight,
        RowBacklog(4),
        InputImages(MemoryStore(), AllowList()),
        max_deliveries=4,
        max_in_hand=4,
        usual_steps=4,
    )
    claimed = SimpleNamespace(tag="1.000000")
    request: Any = SimpleNamespace(name="", message=SimpleNamespace(claimed=claimed))
    intake.accept(request)
    return intake, beginner.attempt


def test_who_hands_back_waits_for_what_is_being_begun() -> None:
    found: list[list[Attempt]] = []

    def leave(intake: Dispatcher) -> None:
        intake.close()
        intake.put_down()
        found.append(in_flight.attempts())

    def meanwhile(intake: Dispatcher) -> None:
        leaver = threading.Thread(target=leave, args=[intake], daemon=True)
        leaver.start()
        leaver.join(timeout=0.5)  # it would be done by then, and have missed the job
        leavers.append(leaver)

    leavers: list[threading.Thread] = []
    in_flight = InFlight()
    intake, attempt = _intake_with(meanwhile, in_flight)
    assert intake.next_batch() == []
    leavers[0].join(timeout=60)
    assert found == [[attempt]]


def test_a_signal_s_handler_may_interrupt_who_takes_work_in() -> None:
    def handle(intake: Dispatcher) -> None:
        intake.close()
        intake.put_down()

    intake, _ = _intake_with(handle, InFlight())
    taking = threading.Thread(target=intake.next_batch, daemon=True)
    taking.start()
    taking.join(timeout=60)
    assert not taking.is_alive()
