"""Job records on a real Redis: a move is a compare-and-set and takes its callback with it."""

import json

import pytest
import redis

from imagefleet.shared.errors import InvalidRequest, JobCancelled, LeaseLost, UnknownJob
from imagefleet.shared.jobs.events import callback
from imagefleet.shared.jobs.model import CallbackEvent, JobError, JobRequest, JobResult, State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from tests.support.records import begin

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


def _submit(records: JobRecords, job_id: str = "j", **parameters: object) -> JobRequest:
    request = JobRequest.parse({"prompt": "a", "seed": 1, **parameters})
    records.submit([(job_id, request)])
    return request


def test_accepting_stores_record_and_message_together(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = _submit(records, height=64, width=128)
    assert records.get("j").state is State.QUEUED
    assert records.get("j").request == request
    [message] = client.lrange(list_key(f"{namespace}.default.64x128", 3), 0, -1)
    assert json.loads(message)["headers"]["id"] == "j"


def test_a_resent_job_is_the_same_job_and_queued_once(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = JobRequest.parse({"prompt": "a"})
    assert records.submit([("j", request), ("j", JobRequest.parse({"prompt": "a"}))]) == [
        True,
        False,
    ]
    assert records.get("j").request.seed == request.seed
    assert client.llen(list_key(f"{namespace}.default.native", 3)) == 1


def test_an_id_with_other_parameters_is_refused(records: JobRecords) -> None:
    _submit(records)
    with pytest.raises(InvalidRequest, match="already stands with prompt='a', not 'b'"):
        records.submit([("j", JobRequest.parse({"prompt": "b"}))])
    with pytest.raises(InvalidRequest, match="seed=1, not 2"):
        records.submit([("j", JobRequest.parse({"prompt": "a", "seed": 2}))])


def test_only_the_attempt_that_holds_the_job_can_end_it(records: JobRecords) -> None:
    _submit(records)
    assert begin(records, "j", "first").happened
    assert begin(records, "j", "second", 2).happened
    late = records.succeed("j", "first", RESULT, None)
    assert (late.happened, late.attempt) == (False, "second")
    with pytest.raises(LeaseLost):
        records.progress("j", "first", 3, 10, None)
    assert records.progress("j", "second", 3, 10, None)
    assert records.succeed("j", "second", RESULT, None).happened
    status = records.get("j")
    assert (status.state, status.deliveries, status.step) == (State.SUCCEEDED, 2, 3)


def test_a_job_that_ended_stays_as_it_is(records: JobRecords) -> None:
    _submit(records)
    begin(records, "j", "a")
    records.succeed("j", "a", RESULT, None)
    assert not begin(records, "j", "b", 2).happened
    assert not records.fail("j", "a", JobError(code="x", message="y"), None).happened
    assert not records.cancel("j", "", None).happened
    assert records.ask_to_cancel("j") is State.SUCCEEDED
    assert records.get("j").result == RESULT


def test_cancelling_ends_a_queued_job_and_warns_a_running_one(records: JobRecords) -> None:
    _submit(records, "queued")
    _submit(records, "running")
    begin(records, "running", "a")
    assert records.cancel("queued", "", None).happened
    assert not records.cancel("running", "", None).happened
    assert records.ask_to_cancel("running") is State.RUNNING
    assert not records.progress("running", "a", 1, 10, None)
    assert records.get("queued").state is State.CANCELLED


def test_a_callback_is_queued_exactly_when_its_move_happens(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = _submit(records, callback_url="http://example.org/x")
    begin(records, "j", "a", 1, callback(CallbackEvent.STARTED, "j", request))
    event = callback(CallbackEvent.SUCCEEDED, "j", request, result=RESULT)
    assert event is not None
    records.succeed("j", "stale", RESULT, event)
    assert client.zcard(f"{namespace}:outbox") == 0
    records.succeed("j", "a", RESULT, event)
    records.succeed("j", "a", RESULT, event)
    assert client.zrange(f"{namespace}:outbox", 0, -1) == ["j.succeeded"]
    message = json.loads(client.hget(f"{namespace}:outbox:messages", "j.succeeded"))
    assert message["url"] == "http://example.org/x"
    assert json.loads(message["body"])["type"] == "job.succeeded"


def test_an_event_nobody_asked_for_makes_no_callback() -> None:
    request = JobRequest.parse({"prompt": "a", "callback_url": "http://example.org/x"})
    assert callback(CallbackEvent.STARTED, "j", request) is None
    assert callback(CallbackEvent.SUCCEEDED, "j", request) is not None
    assert callback(CallbackEvent.SUCCEEDED, "j", JobRequest.parse({"prompt": "a"})) is None


def test_finished_records_expire_and_unfinished_ones_do_not(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records)
    assert client.ttl(f"{namespace}:job:j") == -1
    begin(records, "j", "a")
    records.succeed("j", "a", RESULT, None)
    assert 0 < client.ttl(f"{namespace}:job:j") <= 3600


def test_an_unknown_job_says_so(records: JobRecords) -> None:
    with pytest.raises(UnknownJob, match="'nobody'"):
        records.get("nobody")
    with pytest.raises(UnknownJob):
        records.ask_to_cancel("nobody")
    assert not begin(records, "nobody", "a").happened


def test_a_handed_back_job_forgets_that_it_had_started(records: JobRecords) -> None:
    _submit(records)
    begin(records, "j", "a")
    assert records.get("j").started_at
    [move] = records.requeue(("j", "a"))
    assert move.happened
    status = records.get("j")
    assert (status.state, status.started_at, status.step) == (State.QUEUED, None, 0)
    assert not records.holds("j", "a")


def _claimed(client: redis.Redis, namespace: str, records: JobRecords) -> tuple[str, str]:
    """The job `j` begun by attempt `a`, its message in a claims hash."""
    _submit(records)
    queue = list_key(f"{namespace}.default.native", 3)
    claims = f"{namespace}:claims:w"
    client.hset(claims, "7", f"{queue}\0{client.rpop(queue)}")
    begin(records, "j", "a", 1, None, (claims, "7"))
    return claims, "7"


def test_a_retry_moves_record_claim_and_message_together(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claimed(client, namespace, records)
    assert records.retry("j", "a", claim, 3600)
    status = records.get("j")
    assert (status.state, status.retries, status.started_at) == (State.QUEUED, 1, None)
    assert status.retry_at is not None
    assert status.retry_at > status.submitted_at + 3500
    assert not client.exists(claim[0])
    assert client.zcard(f"{namespace}:later") == 1
    assert records.bring_back() == 0
    assert not records.retry("j", "a", claim, 0)
    assert records.get("j").retries == 1


def test_what_is_due_comes_back_to_the_head_of_its_queue(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claimed(client, namespace, records)
    _submit(records, "behind")
    records.retry("j", "a", claim, 0)
    assert records.bring_back() == 1
    assert records.bring_back() == 0
    queue = list_key(f"{namespace}.default.native", 3)
    ids = [json.loads(message)["headers"]["id"] for message in client.lrange(queue, 0, -1)]
    assert ids == ["behind", "j"]  # popped from the right
    assert begin(records, "j", "b").happened
    assert records.get("j").retry_at is None


def test_only_who_holds_the_job_and_its_message_can_put_it_aside(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claims, tag = _claimed(client, namespace, records)
    assert not records.retry("j", "a stranger", (claims, tag), 0)
    assert not records.retry("j", "a", (claims, "8"), 0)
    assert records.get("j").state is State.RUNNING
    assert client.hexists(claims, tag)
    assert not client.exists(f"{namespace}:later")


def test_a_job_somebody_wants_cancelled_is_not_tried_again(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claimed(client, namespace, records)
    records.ask_to_cancel("j")
    with pytest.raises(JobCancelled):
        records.retry("j", "a", claim, 0)
    assert records.cancel("j", "a", None).happened


def test_a_job_somebody_wants_cancelled_neither_waits_nor_begins_again(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records, callback_url="http://example.org/x")
    begin(records, "j", "a")
    assert records.ask_to_cancel("j") is State.RUNNING
    [move] = records.requeue(("j", "a"))
    assert move.cancel_requested
    assert begin(records, "j", "b", 2).cancel_requested
    assert records.holds("j", "a")
    records.withdraw("j")
    assert records.get("j").state is State.CANCELLED
    assert client.zrange(f"{namespace}:outbox", 0, -1) == ["j.cancelled"]


def test_a_job_cancelled_while_it_waits_for_a_retry_waits_no_more(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claimed(client, namespace, records)
    records.retry("j", "a", claim, 3600)
    assert records.cancel("j", "", None).happened
    assert records.get("j").retry_at is None


def test_all_that_is_due_comes_back_at_once_and_what_was_due_first_is_served_first(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    queue = f"{namespace}.q"
    client.zadd(f"{namespace}:later", {f"{queue}\0{due}": due for due in range(250)})
    assert records.bring_back() == 250
    assert [client.rpop(queue) for _ in range(250)] == [str(due) for due in range(250)]
