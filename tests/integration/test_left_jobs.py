"""A worker gets messages of jobs that failed on its host before."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from imagefleet.shared.jobs.celery_message import task_arguments
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_origin import MessageOrigin
from imagefleet.shared.jobs.queues import queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import delayed_key, job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.worker_status import WorkerRegistry, WorkerState, WorkerStatus
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs import left_jobs
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.other_workers import OtherWorkers
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims

HERE, THERE = "here:1:a", "there:1:b"
INFO = FakeEngine().info
REQUEST = JobRequest.parse({"prompt": "a", "seed": 1})


class _Host:
    """A worker that claims one message at a time."""

    def __init__(
        self,
        client: redis.Redis,
        namespace: str,
        make_claims: MakeClaims,
        others: Sequence[WorkerStatus] = (),
    ) -> None:
        self._client, self._namespace = client, namespace
        self.records = JobRecords(client, namespace, 3600)
        self._claims = make_claims(HERE)
        registry = WorkerRegistry(client, namespace)
        registry.statuses = lambda: list(others)  # type: ignore[method-assign]
        self._starter = JobStarter(
            self._claims,
            self.records,
            Refuser(self._claims, self.records, DeadLetters(client, namespace)),
            INFO,
            4,
            others=OtherWorkers(registry, HERE, INFO.name),
        )

    def submit(self, job_id: str, *, failed: bool) -> None:
        self.records.submit([(job_id, REQUEST)])
        if failed:
            failure = {"worker": HERE, "code": "device_error", "at": 1, "message": "m"}
            text = json.dumps(failure, separators=(",", ":"))
            self._client.hset(job_key(self._namespace, job_id), "failures", text)

    def claim_and_start(self, *, recorded: bool = True) -> dict[str, object]:
        """Return the outcomes by job id."""
        queue = queue_of(self._namespace, REQUEST)
        received: list[Any] = []
        for claimed in self._claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1):
            origin = MessageOrigin(
                job_id=json.loads(claimed.message)["headers"]["id"],
                arguments=task_arguments(claimed.message),
                recorded=recorded,
                request_sha1="",
            )
            message = SimpleNamespace(
                claimed=claimed, origin=origin, job_request=origin.read_request()
            )
            received.append(
                SimpleNamespace(id=origin.job_id, message=message, revoked=lambda: False)
            )
        return dict(zip((each.id for each in received), self._starter.start(received), strict=True))


def test_a_record_of_another_spelling_starts_on_the_host_on_which_it_failed(
    client: redis.Redis, namespace: str, make_claims: MakeClaims
) -> None:
    host = _Host(client, namespace, make_claims)
    host.submit("j", failed=True)
    # A worker of an older release created the record of this message of plain Celery.
    client.hset(job_key(namespace, "j"), "request", json.dumps(REQUEST.model_dump(mode="json")))
    outcomes = host.claim_and_start(recorded=False)
    assert isinstance(outcomes["j"], Attempt)


def test_a_job_that_is_left_to_others_keeps_no_other_job_waiting(
    client: redis.Redis,
    namespace: str,
    make_claims: MakeClaims,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(left_jobs, "_PAUSE_S", 0.0)
    monkeypatch.setattr(left_jobs, "_PAUSE_EVERY_S", 900.0)
    shapes = tuple(map(str, INFO.shapes))
    other = WorkerStatus(worker=THERE, state=WorkerState.READY, model=INFO.name, shapes=shapes)
    host = _Host(client, namespace, make_claims, [other])
    host.submit("failed", failed=True)
    host.submit("good", failed=False)
    assert host.claim_and_start() == {"failed": None}
    assert not client.zcard(delayed_key(namespace))  # it is at the head, for others
    assert host.claim_and_start() == {"failed": None}
    assert client.zcard(delayed_key(namespace)) == 1
    assert isinstance(host.claim_and_start()["good"], Attempt)
