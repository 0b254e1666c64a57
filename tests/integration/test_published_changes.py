"""Each script that changes a job's record publishes it, and none depends on the right to do so."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import JobError, State
from imagefleet.shared.jobs.progress import AttemptVerdict, ProgressReport
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import changes_channel
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.server_check import check_server
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.processes import until
from tests.support.records import start_attempt
from tests.support.redis import TcpServer

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})
ERROR = JobError(code="worker_error", message="m")


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


@pytest.fixture
def heard(client: redis.Redis, namespace: str) -> Iterator[Callable[[], str]]:
    """Return a function that returns the next message about job `j`."""
    channel = changes_channel(namespace, "j")
    with client.pubsub() as subscription:
        subscription.subscribe(channel)
        assert until(lambda: subscription.get_message(timeout=1))["type"] == "subscribe"

        def hear() -> str:
            message = until(lambda: subscription.get_message(timeout=1))
            assert (message["type"], message["channel"]) == ("message", channel)
            return str(message["data"])

        yield hear


def _submit(records: JobRecords) -> None:
    records.submit([("j", JobRequest.parse({"prompt": "a", "seed": 1}))])


def test_a_job_that_runs_publishes_its_start_its_steps_its_end_and_its_deletion(
    records: JobRecords, heard: Callable[[], str]
) -> None:
    _submit(records)
    start_attempt(records, "j", "w1")
    assert heard() == "running"
    records.record_progress(ProgressReport(job_id="j", attempt="w1", step=2, steps=4))
    assert heard() == "running"
    records.requeue(("j", "w1"))
    assert heard() == "queued"
    start_attempt(records, "j", "w2")
    assert heard() == "running"
    records.request_cancel("j")
    assert heard() == "running"
    records.succeed("j", "w2", RESULT, None)
    assert heard() == "succeeded"
    records.delete_ended("j")
    assert heard() == "deleted"


def test_a_transition_that_is_refused_publishes_nothing(
    records: JobRecords, heard: Callable[[], str]
) -> None:
    _submit(records)
    start_attempt(records, "j", "w1")
    assert heard() == "running"
    assert not records.succeed("j", "another", RESULT, None).happened
    assert records.succeed("j", "w1", RESULT, None).happened
    assert heard() == "succeeded"


def test_a_pause_a_retry_and_a_redrive_are_published(
    client: redis.Redis,
    records: JobRecords,
    namespace: str,
    heard: Callable[[], str],
    make_claims: MakeClaims,
) -> None:
    claims, groups = (
        make_claims("w"),
        [QueueGroup(name="q", queues=(f"{namespace}.default.native",))],
    )
    _submit(records)
    [claimed] = claims.claim(groups, 1)
    claims.delay_queued(claimed.tag, 0, records.key("j"))
    assert heard() == "queued"
    assert records.requeue_due() == 1
    [claimed] = claims.claim(groups, 2)
    start_attempt(records, "j", claimed.attempt)
    assert heard() == "running"
    assert records.retry("j", claimed.attempt, (claims.key, claimed.tag), 0, "device_error")
    assert heard() == "queued"
    records.fail("j", "", ERROR, None)
    assert heard() == "failed"
    letters = DeadLetters(client, namespace)
    letter = letters.add(
        claimed.list_key, claimed.message, code="c", reason="r", deliveries=1, worker="w"
    )
    assert letters.redrive(letter) is State.QUEUED
    assert heard() == "queued"
    [claimed] = claims.claim(groups, 3)
    assert claims.postpone(claimed, records.key("j"))
    assert heard() == "queued"


@pytest.fixture
def deaf_url(tmp_path: Path, namespace: str) -> Iterator[str]:
    """The address of a Redis for a user of an older installation, who may use no such channel."""
    with TcpServer(tmp_path / "deaf", "--appendonly", "yes") as server:
        channels = ("resetchannels", "&celery-task-meta-*", f"&/0.{namespace}.pidbox")
        words = ("on", ">pw", "~*", *channels, "+@all")
        server.client().execute_command("ACL", "SETUSER", "old", *words)
        yield f"redis://old:pw@127.0.0.1:{server.port}/0"


def test_a_user_without_the_right_to_the_channel_changes_records_all_the_same(
    deaf_url: str, namespace: str
) -> None:
    client = connect(deaf_url, retries=0)
    records = JobRecords(client, namespace, retention_s=3600)
    _submit(records)
    assert start_attempt(records, "j", "w1").happened
    report = ProgressReport(job_id="j", attempt="w1", step=2, steps=4)
    assert records.record_progress(report) == [AttemptVerdict.GO_ON]
    assert records.request_cancel("j") is State.RUNNING
    assert records.succeed("j", "w1", RESULT, None).happened
    assert (records.get("j").state, records.get("j").step) == (State.SUCCEEDED, 2)
    assert records.delete_ended("j") is State.SUCCEEDED


def test_the_check_of_a_server_warns_of_that_user(deaf_url: str, namespace: str) -> None:
    [warning] = check_server(connect(deaf_url, retries=0), deaf_url, namespace)
    assert f"&{namespace}:changes:*" in warning
