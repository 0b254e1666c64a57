"""Job records on a real Redis: a transition is a compare-and-set and queues its callback."""

import json
from dataclasses import replace

import pytest
import redis
from celery import Celery

from imagefleet.shared.errors import (
    InvalidRequest,
    JobCancelled,
    UnknownJob,
    UnreadableRecord,
)
from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.fleet_status import FleetReader
from imagefleet.shared.jobs.message_arguments import unpack
from imagefleet.shared.jobs.message_origin import sha1_of
from imagefleet.shared.jobs.model import CallbackEvent, JobError, State
from imagefleet.shared.jobs.progress import AttemptVerdict, ProgressReport
from imagefleet.shared.jobs.queues import list_for_add_ons, list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.resend import RESEND_AFTER_S
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.submit_errors import check_same_request
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.records import start_attempt

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


def _submit(records: JobRecords, job_id: str = "j", **parameters: object) -> JobRequest:
    request = JobRequest.parse({"prompt": "a", "seed": 1, **parameters})
    records.submit([(job_id, request)])
    return request


def test_submitting_stores_record_and_message_together(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = _submit(records, height=64, width=128)
    assert records.get("j").state is State.QUEUED
    assert records.get("j").request == request
    [message] = client.lrange(list_key(f"{namespace}.default.64x128", 3), 0, -1)
    assert json.loads(message)["headers"]["id"] == "j"


def test_a_job_submitted_again_with_its_id_is_queued_once(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = JobRequest.parse({"prompt": "a"})
    assert records.submit([("j", request), ("j", JobRequest.parse({"prompt": "a"}))]) == [
        True,
        False,
    ]
    assert records.get("j").request.seed == request.seed
    assert client.llen(list_key(f"{namespace}.default.native", 3)) == 1


def test_an_id_is_refused_for_other_parameters_without_telling_the_stored_ones(
    records: JobRecords,
) -> None:
    _submit(records, prompt="secret", tenant="gold", callback_url="https://h/?token=hidden")
    for other in ({"prompt": "b"}, {"prompt": "secret", "seed": 2}):
        with pytest.raises(InvalidRequest) as refused:
            records.submit([("j", JobRequest.parse(other))])
        assert str(refused.value) == "id='j': is in use already, for a job with other parameters"


def test_an_id_whose_record_is_no_text_is_refused(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records)
    stored = records.get("j").request.model_dump_json()
    broken = stored.encode().replace(b'"a"', b'"\xff"')
    client.hset(records.key("j"), "request", broken)
    with pytest.raises(InvalidRequest, match="is in use already"):
        _submit(records, prompt="\ufffd")
    assert client.llen(list_key(f"{namespace}.default.native", 3)) == 1


def test_record_and_message_agree_if_the_record_expires_during_a_submission(
    records: JobRecords, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = JobRequest.parse({"prompt": "a"})
    records.submit([("j", first)])

    def check_and_expire(job_id: str, new: JobRequest, stored: str) -> JobRequest:
        client.delete(records.key(job_id), list_key(f"{namespace}.default.native", 3))
        return check_same_request(job_id, new, stored)

    monkeypatch.setattr("imagefleet.shared.jobs.submitter.check_same_request", check_and_expire)
    assert records.submit([("j", JobRequest.parse({"prompt": "a"}))]) == [True]
    [message] = client.lrange(list_key(f"{namespace}.default.native", 3), 0, -1)
    [_, arguments, _] = json.loads(json.loads(message)["body"])
    assert unpack(arguments, "j") == records.get("j").request == first


def _set_field(client: redis.Redis, key: str, field: str, **changes: object) -> None:
    """Change parts of a JSON field, as a newer release may."""
    stored = json.loads(client.hget(key, field) or "{}")
    client.hset(key, field, json.dumps({**stored, **changes}))


def test_a_record_of_a_newer_release_is_read_without_its_unknown_fields(
    records: JobRecords, client: redis.Redis
) -> None:
    request = _submit(records)
    _set_field(client, records.key("j"), "request", camera="wide")
    _set_field(client, records.key("j"), "error", code="x", message="y", hint="z")
    client.hset(records.key("j"), "colour", "blue")
    status = records.get("j")
    assert (status.request, status.error) == (request, JobError(code="x", message="y"))
    assert records.submit([("j", request)]) == [False]


def test_a_record_with_characters_that_are_refused_now_is_read(
    records: JobRecords, client: redis.Redis
) -> None:
    _submit(records)
    _set_field(client, records.key("j"), "request", prompt="a\x85b", negative_prompt="\u200b")
    assert records.get("j").request.prompt == "a\x85b"


@pytest.mark.parametrize("damage", ["request", "no request", "state", "result", "kind", "limit"])
def test_an_unreadable_record_is_reported_for_its_id_and_hides_no_other(
    records: JobRecords, client: redis.Redis, damage: str
) -> None:
    for job_id in "abc":
        _submit(records, job_id)
    key = records.key("b")
    if damage == "kind":
        client.set(key, "a string")
    elif damage == "no request":
        client.hdel(key, "request")
    elif damage == "limit":
        _set_field(client, key, "request", num_inference_steps=2_000)
    else:
        client.hset(key, damage, "a\x1b[31m" + "b" * 1_000)
    first, unreadable, last = records.read_each("abc")
    assert [each and each.state for each in (first, last)] == [State.QUEUED] * 2  # type: ignore[union-attr]
    assert isinstance(unreadable, UnreadableRecord)
    assert "job 'b'" in str(unreadable)
    assert str(unreadable).isprintable()
    assert len(str(unreadable)) < 1_000
    assert records.states("abc")[::2] == [State.QUEUED, State.QUEUED]
    with pytest.raises(UnreadableRecord):
        records.get("b")


def test_only_the_current_attempt_can_end_the_job(records: JobRecords) -> None:
    _submit(records)
    assert start_attempt(records, "j", "first").happened
    assert start_attempt(records, "j", "second", 2).happened
    result = records.succeed("j", "first", RESULT, None)
    assert (result.happened, result.attempt) == (False, "second")
    answers = records.record_progress(
        ProgressReport(job_id="j", attempt="first", step=4, steps=10),
        ProgressReport(job_id="j", attempt="second", step=3, steps=10),
    )
    assert answers == [AttemptVerdict.LOST, AttemptVerdict.GO_ON]
    assert records.succeed("j", "second", RESULT, None).happened
    status = records.get("j")
    assert (status.state, status.deliveries, status.step) == (State.SUCCEEDED, 2, 3)


def test_a_job_that_ended_never_changes(records: JobRecords) -> None:
    _submit(records)
    start_attempt(records, "j", "a")
    records.succeed("j", "a", RESULT, None)
    assert not start_attempt(records, "j", "b", 2).happened
    assert not records.fail("j", "a", JobError(code="x", message="y"), None).happened
    assert not records.cancel("j", "", None).happened
    assert records.request_cancel("j") is State.SUCCEEDED
    assert records.get("j").result == RESULT


def test_cancelling_ends_a_queued_job_and_is_requested_for_a_running_one(
    records: JobRecords,
) -> None:
    _submit(records, "queued")
    _submit(records, "running")
    start_attempt(records, "running", "a")
    assert records.cancel("queued", "", None).happened
    assert not records.cancel("running", "", None).happened
    assert records.request_cancel("running") is State.RUNNING
    report = ProgressReport(job_id="running", attempt="a", step=1, steps=10)
    assert records.record_progress(report) == [AttemptVerdict.CANCEL]
    assert records.get("queued").state is State.CANCELLED


def test_a_callback_is_queued_only_if_its_transition_is_applied(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = _submit(records, callback_url="http://example.org/x")
    start_attempt(records, "j", "a", 1, build_callback(CallbackEvent.STARTED, "j", request))
    event = build_callback(CallbackEvent.SUCCEEDED, "j", request, result=RESULT)
    assert event is not None
    records.succeed("j", "stale", RESULT, event)
    assert client.zcard(f"{namespace}:outbox") == 0
    records.succeed("j", "a", RESULT, event)
    records.succeed("j", "a", RESULT, event)
    assert client.zrange(f"{namespace}:outbox", 0, -1) == ["j.succeeded"]
    message = json.loads(client.hget(f"{namespace}:outbox:messages", "j.succeeded") or "")
    assert message["url"] == "http://example.org/x"
    assert json.loads(message["body"])["type"] == "job.succeeded"


def test_an_event_that_was_not_requested_has_no_callback() -> None:
    request = JobRequest.parse({"prompt": "a", "callback_url": "http://example.org/x"})
    assert build_callback(CallbackEvent.STARTED, "j", request) is None
    assert build_callback(CallbackEvent.SUCCEEDED, "j", request) is not None
    assert build_callback(CallbackEvent.SUCCEEDED, "j", JobRequest.parse({"prompt": "a"})) is None


def test_only_records_of_ended_jobs_expire(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records)
    assert client.ttl(f"{namespace}:job:j") == -1
    start_attempt(records, "j", "a")
    records.succeed("j", "a", RESULT, None)
    assert 0 < client.ttl(f"{namespace}:job:j") <= 3600


def test_an_unknown_job_is_an_error(records: JobRecords) -> None:
    with pytest.raises(UnknownJob, match="'nobody'"):
        records.get("nobody")
    with pytest.raises(UnknownJob):
        records.request_cancel("nobody")
    assert not start_attempt(records, "nobody", "a").happened


def test_a_requeued_job_has_no_start_time_and_no_attempt(records: JobRecords) -> None:
    _submit(records)
    start_attempt(records, "j", "a")
    assert records.get("j").started_at
    [transition] = records.requeue(("j", "a"))
    assert transition.happened
    status = records.get("j")
    assert (status.state, status.started_at, status.step) == (State.QUEUED, None, 0)
    assert not records.is_current("j", "a")


def _claim_and_start(client: redis.Redis, namespace: str, records: JobRecords) -> tuple[str, str]:
    """Submit the job `j`, claim its message and start attempt `a`. Return (claims hash, tag)."""
    _submit(records)
    queue = list_key(f"{namespace}.default.native", 3)
    claims = f"{namespace}:claims:w"
    client.hset(claims, "7", f"{queue}\0{client.rpop(queue)!s}")
    start_attempt(records, "j", "a", 1, None, (claims, "7"))
    return claims, "7"


def test_a_retry_changes_record_claim_and_message_together(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claim_and_start(client, namespace, records)
    assert records.retry("j", "a", claim, 3600, "device_error")
    status = records.get("j")
    assert (status.state, status.retries, status.started_at) == (State.QUEUED, 1, None)
    assert status.retry_at is not None
    assert status.retry_at > status.submitted_at + 3500
    assert not client.exists(claim[0])
    assert client.zcard(f"{namespace}:later") == 1
    assert records.requeue_due() == 0
    assert not records.retry("j", "a", claim, 0, "device_error")
    assert records.get("j").retries == 1


def test_a_due_message_is_requeued_at_the_head_of_its_queue(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claim_and_start(client, namespace, records)
    _submit(records, "behind")
    records.retry("j", "a", claim, 0, "device_error")
    assert records.requeue_due() == 1
    assert records.requeue_due() == 0
    queue = list_key(f"{namespace}.default.native", 3)
    ids = [json.loads(message)["headers"]["id"] for message in client.lrange(queue, 0, -1)]
    assert ids == ["behind", "j"]  # claims pop from the right
    assert start_attempt(records, "j", "b").happened
    assert records.get("j").retry_at is None


def test_only_the_attempt_that_holds_job_and_message_can_retry(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claims, tag = _claim_and_start(client, namespace, records)
    assert not records.retry("j", "another", (claims, tag), 0, "device_error")
    assert not records.retry("j", "a", (claims, "8"), 0, "device_error")
    assert records.get("j").state is State.RUNNING
    assert client.hexists(claims, tag)
    assert not client.exists(f"{namespace}:later")


def test_a_job_with_a_cancel_request_is_not_retried(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claim_and_start(client, namespace, records)
    records.request_cancel("j")
    with pytest.raises(JobCancelled):
        records.retry("j", "a", claim, 0, "device_error")
    assert records.cancel("j", "a", None).happened


def test_a_job_with_a_cancel_request_is_neither_requeued_nor_started(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records, callback_url="http://example.org/x")
    start_attempt(records, "j", "a")
    assert records.request_cancel("j") is State.RUNNING
    [transition] = records.requeue(("j", "a"))
    assert transition.cancel_requested
    assert start_attempt(records, "j", "b", 2).cancel_requested
    assert records.is_current("j", "a")
    records.cancel_unconditionally("j")
    assert records.get("j").state is State.CANCELLED
    assert client.zrange(f"{namespace}:outbox", 0, -1) == ["j.cancelled"]


def test_a_job_is_not_cancelled_for_one_that_had_its_id_before(records: JobRecords) -> None:
    _submit(records)
    records.cancel_unconditionally("j", sha1_of("the request of a deleted job"))
    assert records.get("j").state is State.QUEUED
    records.cancel_unconditionally("j", sha1_of(str(records.stored_request("j"))))
    assert records.get("j").state is State.CANCELLED


def test_a_job_can_be_cancelled_while_it_waits_for_a_retry(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    claim = _claim_and_start(client, namespace, records)
    records.retry("j", "a", claim, 3600, "device_error")
    assert records.cancel("j", "", None).happened
    assert records.get("j").retry_at is None


def test_all_due_messages_are_requeued_and_the_longest_due_is_served_first(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    queue = f"{namespace}.q"
    client.zadd(f"{namespace}:later", {f"{queue}\0{due}": due for due in range(250)})
    assert records.requeue_due() == 250
    assert [client.rpop(queue) for _ in range(250)] == [str(due) for due in range(250)]


def _waiting(client: redis.Redis, namespace: str) -> int:
    return sum(client.llen(key) for key in client.keys(f"{namespace}.*"))


def test_a_sweep_drops_messages_of_ended_jobs_of_a_model_that_nobody_serves(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    for number in range(6):
        _submit(records, f"j{number}", model="nobodys", tenant="gold", priority=number)
    for number in (0, 2, 4):
        records.cancel(f"j{number}", "", None)
    until(lambda: records.sweep_queues() and _waiting(client, namespace) == 3)
    assert client.scard(known_queues_key(namespace)) == 1
    for number in (1, 3, 5):
        records.cancel(f"j{number}", "", None)
    until(lambda: records.sweep_queues() and not client.exists(known_queues_key(namespace)))
    assert _waiting(client, namespace) == 0


def test_a_sweep_keeps_every_message_whose_job_has_not_ended(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records, "waits")
    _submit(records, "ended")
    queue = list_key(f"{namespace}.default.native", 3)
    [_, waits] = client.lrange(queue, 0, -1)
    records.cancel("ended", "", None)
    misleading = json.dumps({"body": '{"id": "ended"}', "x": {"id": "ended"}, "headers": {}})
    kept = [
        "no JSON",
        '"id":"ended" [[',
        misleading,
        json.dumps({"headers": {"id": "unknown"}}),
        waits,
    ]
    client.lpush(queue, *kept[:-1])
    client.sadd(known_queues_key(namespace), f"{namespace}.strange")
    client.set(f"{namespace}.strange", "not a list")
    for _ in range(20):
        records.sweep_queues()
    assert sorted(client.lrange(queue, 0, -1)) == sorted(kept)


def test_a_sweep_reaches_all_messages_of_a_long_queue(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = JobRequest.parse({"prompt": "a", "model": "nobodys"})
    records.submit([(f"j{number}", request) for number in range(1_000)])
    for number in range(0, 1_000, 10):
        records.cancel(f"j{number}", "", None)
    until(lambda: records.sweep_queues() and _waiting(client, namespace) == 900)


def _purge(server: LocalRedisServer, queue: str) -> None:
    """Delete the messages of a queue as `celery purge` does."""
    app = Celery(broker=celery_url(server.url), set_as_current=False)
    with app, app.connection() as connection:
        connection.default_channel.queue_purge(queue)


def _age(client: redis.Redis, key: str, seconds: float) -> None:
    client.hset(key, "submitted_at", str(float(client.hget(key, "submitted_at")) - seconds))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [{}, {"seed": 1}])
def test_a_purged_job_that_is_submitted_again_is_queued_again_once(
    records: JobRecords,
    redis_server: LocalRedisServer,
    client: redis.Redis,
    namespace: str,
    seed: dict[str, int],
) -> None:
    request = JobRequest.parse({"prompt": "a", "tenant": "gold", **seed})
    records.submit([("j", request), ("other", request)])
    queue = f"{namespace}.default.native@gold"
    [_, original] = client.lrange(list_key(queue, 3), 0, -1)
    _purge(redis_server, queue)
    client.delete(known_queues_key(namespace))
    assert records.submit([("j", request)]) == [False]
    assert _waiting(client, namespace) == 0, "it may be claimed just now"
    _age(client, records.key("j"), RESEND_AFTER_S)
    for _ in range(3):
        records.submit([("j", JobRequest.parse({"prompt": "a", "tenant": "gold", **seed}))])
        assert client.lrange(list_key(queue, 3), 0, -1) == [original]
    assert client.smembers(known_queues_key(namespace)) == {queue}


def test_a_waiting_job_that_is_submitted_again_gets_no_second_message(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = _submit(records)
    _age(client, records.key("j"), 10 * RESEND_AFTER_S)
    records.submit([("j", request)])
    assert records.resend(["j"]) == [False]
    assert _waiting(client, namespace) == 1


def test_a_job_that_waits_in_the_queue_of_all_shapes_gets_no_second_message(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    request = JobRequest(prompt="a", height=64, width=64)
    for job_id, by_compile_key in (("j", False), ("k", True)):
        records.submit([(job_id, request)], by_compile_key=by_compile_key)
        _age(client, records.key(job_id), 10 * RESEND_AFTER_S)
        records.submit([(job_id, request)], by_compile_key=not by_compile_key)
        assert records.resend([job_id], by_compile_key=not by_compile_key) == [False]
    assert _waiting(client, namespace) == 2


@pytest.mark.parametrize("by_compile_key", [False, True])
def test_a_job_that_waits_for_a_worker_with_its_lora_gets_no_second_message(
    records: JobRecords, client: redis.Redis, namespace: str, by_compile_key: bool
) -> None:
    request = JobRequest(prompt="a", height=64, width=64, loras=(("style", 1.0),))
    records.submit([("j", request)], by_compile_key=by_compile_key)
    [queue] = client.keys(f"{namespace}.default.*")
    client.rename(queue, list_for_add_ons(str(queue), {"style"}))
    assert records.resend(["j"], by_compile_key=not by_compile_key) == [False]


def test_records_of_very_many_jobs_are_read_once_to_send_them_again(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    ids = [f"j{number}" for number in range(1_100)]
    records.submit([(job_id, JobRequest(prompt="a")) for job_id in ids])
    client.delete(*client.keys(f"{namespace}.*"))
    before = _reads(client)
    assert records.resend(ids[:2]) == [True, True]
    assert records.resend(ids) == [False, False] + [True] * 1_098
    assert _reads(client) - before == 1_102
    with pytest.raises(UnknownJob):
        records.resend([*ids, "unknown"])


def test_a_job_of_release_0_1_0_is_sent_again_as_it_was_accepted(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    _submit(records)
    stored = json.loads(str(client.hget(records.key("j"), "request")))
    client.hset(records.key("j"), "request", json.dumps({**stored, "negative_prompt": ""}))
    client.delete(*client.keys(f"{namespace}.*"))
    assert records.resend(["j"]) == [True]
    [message] = client.lrange(list_key(f"{namespace}.default.native", 3), 0, -1)
    body = json.loads(json.loads(message)["body"])
    assert unpack(body[1], "j").negative_prompt == ""
    client.hset(records.key("j"), "request", json.dumps({**stored, "camera": "wide"}))
    with pytest.raises(InvalidRequest, match=r"camera=.*is a field of a newer release"):
        records.resend(["j"])


def _reads(client: redis.Redis) -> int:
    """Return how many commands have read hashes, except the scripts that queue jobs again."""
    stats = client.info("commandstats")
    names = ("cmdstat_hgetall", "cmdstat_hget")
    return sum(stats[name]["calls"] for name in names if name in stats)


def test_only_queued_jobs_are_sent_again(
    records: JobRecords, redis_server: LocalRedisServer, client: redis.Redis, namespace: str
) -> None:
    for job_id in ("queued", "running", "ended"):
        _submit(records, job_id)
    start_attempt(records, "running", "a")
    records.cancel("ended", "", None)
    _purge(redis_server, f"{namespace}.default.native")
    assert records.resend(["queued", "running", "ended"]) == [True, False, False]
    assert records.resend(["queued"]) == [False]
    with pytest.raises(UnknownJob):
        records.resend(["unknown"])
    assert _waiting(client, namespace) == 1


def test_ends_are_counted_once_by_state_and_code(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    for job_id in ("good", "bad", "unwanted"):
        _submit(records, job_id)
    for job_id in ("good", "bad"):
        start_attempt(records, job_id, "a")
    for _ in range(2):
        records.succeed("good", "a", RESULT, None)
        records.fail("bad", "a", JobError(code="device_error", message='"code":"x"'), None)
        records.cancel("unwanted", "", None)
    ends = FleetReader(Lanes.single(client, namespace)).read().job_ends
    assert ends == {"succeeded": 1, "failed:device_error": 1, "cancelled": 1}


def test_a_question_is_answered_as_a_report_of_progress_is(
    records: JobRecords, client: redis.Redis
) -> None:
    states = ["running", "cancel", "lost", "ended", "queued", "damaged", "missing"]
    for name in states[:-1]:
        records.submit([(name, JobRequest.parse({"prompt": "a"}))])
        if name != "queued":
            start_attempt(records, name, "a")
    records.request_cancel("cancel")
    start_attempt(records, "lost", "b", 2)
    records.cancel("ended", "a", None)
    client.delete(records.key("damaged"))
    client.set(records.key("damaged"), "no record")
    reports = [ProgressReport(job_id=name, attempt="a", step=1, steps=2) for name in states]
    answers = records.record_progress(*reports)
    assert [answer.name for answer in answers] == ["GO_ON", "CANCEL"] + 5 * ["LOST"]
    assert records.check_attempts(*((name, "a") for name in states)) == answers
    assert records.record_progress(*(replace(each, only_check=True) for each in reports)) == answers
