"""The outbox in a real Redis: pending callbacks are never lost, and ended ones never return."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from redis import Redis

from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.model import CallbackEvent, JobError
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    CallbackState,
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.signature import sign
from tests.support.processes import until
from tests.support.records import start_attempt

DELIVERED = DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=204)
FAILED = DeliveryOutcome(verdict=DeliveryVerdict.RETRY, status=503, reason="Service Unavailable")


@pytest.fixture
def outbox(client: Redis, namespace: str) -> Outbox:
    return Outbox(client, namespace)


def _message(name: str = "a", url: str = "http://hooks.example/x") -> OutboxMessage:
    return OutboxMessage(id=name, job_id=f"job-{name}", url=url, body='{"type": "job.succeeded"}')


def _claim(outbox: Outbox, limit: int = 10, lease_s: float = 60.0) -> list[OutboxMessage]:
    return outbox.claim(limit, lease_s)


def _ids(messages: Iterable[OutboxMessage]) -> list[str]:
    return [message.id for message in messages]


def test_an_added_message_is_due_at_once_and_claimed_once(outbox: Outbox) -> None:
    outbox.add(_message())
    assert _claim(outbox) == [_message()]
    assert _claim(outbox) == []
    assert outbox.count_waiting() == 1


def test_the_longest_due_messages_are_claimed_first_up_to_the_limit(outbox: Outbox) -> None:
    for name in "abc":
        outbox.add(_message(name))
    assert _ids(_claim(outbox, limit=2)) == ["a", "b"]
    assert _ids(_claim(outbox, limit=2)) == ["c"]


def test_a_message_can_be_added_within_a_pipeline(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        outbox.add(_message(), pipe)
        assert outbox.count_waiting() == 0
        pipe.execute()
    assert _ids(_claim(outbox)) == ["a"]


def test_a_claimed_message_is_due_again_when_its_lease_expires(outbox: Outbox) -> None:
    outbox.add(_message())
    _claim(outbox, lease_s=0.05)
    assert _ids(until(lambda: _claim(outbox))) == ["a"]


def test_a_delivered_message_is_deleted(outbox: Outbox, client: Redis, namespace: str) -> None:
    outbox.add(_message())
    [message] = _claim(outbox, lease_s=0)
    outbox.mark_delivered(message, DELIVERED)
    assert _claim(outbox) == []
    assert outbox.count_waiting() == 0
    assert client.hlen(f"{namespace}:outbox:messages") == 0


def test_a_failed_message_is_due_after_its_pause_and_keeps_its_attempts(outbox: Outbox) -> None:
    outbox.add(_message())
    [message] = _claim(outbox, lease_s=0)
    attempted = OutboxMessage(
        id="a", job_id="job-a", url=message.url, body=message.body, attempts=1
    )
    outbox.retry(attempted, 3600, FAILED)
    assert _claim(outbox) == []
    outbox.retry(attempted, 0, FAILED)
    assert _claim(outbox) == [attempted]


def test_a_late_retry_does_not_restore_a_delivered_message(outbox: Outbox) -> None:
    outbox.add(_message())
    [message] = _claim(outbox, lease_s=0)
    outbox.mark_delivered(message, DELIVERED)
    outbox.retry(message, 0, FAILED)
    assert _claim(outbox) == []
    assert outbox.count_waiting() == 0


def test_a_given_up_message_can_be_listed_and_replayed(outbox: Outbox) -> None:
    outbox.add(_message())
    [message] = _claim(outbox)
    outbox.give_up(message, FAILED)
    assert _claim(outbox) == []
    assert [entry.id for entry in outbox.entries(failed=True)] == ["a"]
    outbox.replay("a")
    assert _ids(_claim(outbox)) == ["a"]
    assert outbox.entries(failed=True) == []


def test_a_replayed_message_has_no_attempts(outbox: Outbox) -> None:
    message = OutboxMessage(
        id="a", job_id="job-a", url="http://hooks.example", body="{}", attempts=12
    )
    outbox.add(message)
    outbox.give_up(message, FAILED)
    outbox.replay("a")
    assert _claim(outbox)[0].attempts == 0


def test_a_lane_keeps_its_part_of_the_given_up_messages(client: Redis, namespace: str) -> None:
    outbox = Outbox(client, namespace, lanes=5_000)  # of 10,000 messages
    for name in "abc":
        outbox.add(_message(name))
        outbox.give_up(_message(name), FAILED)
    assert len(outbox.entries(failed=True)) == 2


def test_only_given_up_messages_can_be_replayed(outbox: Outbox) -> None:
    outbox.add(_message())
    for message_id in ("a", "unheard-of"):
        with pytest.raises(UnknownJob):
            outbox.replay(message_id)


def test_a_disabled_receiver_stays_disabled_until_it_is_enabled(outbox: Outbox) -> None:
    outbox.disable("http://hooks.example/x")
    assert outbox.is_disabled("http://hooks.example/x")
    assert not outbox.is_disabled("http://hooks.example/y")
    outbox.enable("http://hooks.example/x")
    assert not outbox.is_disabled("http://hooks.example/x")


def test_the_log_lists_the_latest_attempts_first(outbox: Outbox) -> None:
    outbox.add(_message())
    outbox.retry(_message(), 0, FAILED)
    outbox.mark_delivered(_message(), DELIVERED)
    latest, first = outbox.attempts_of("job-a")
    assert (latest.verdict, latest.status) == (DeliveryVerdict.DELIVERED, 204)
    assert (first.verdict, first.reason) == (DeliveryVerdict.RETRY, "Service Unavailable")
    assert (first.id, first.url) == ("a", _message().url)


def test_the_log_of_a_job_is_bounded_and_expires(client: Redis, namespace: str) -> None:
    outbox = Outbox(client, namespace, retention_s=100)
    for _ in range(60):
        outbox.retry(_message(), 0, FAILED)
    assert len(outbox.attempts_of("job-a")) == 50
    assert 0 < client.ttl(f"{namespace}:outbox:log:job-a") <= 100


def test_entries_show_waiting_and_given_up_callbacks_with_the_reason(outbox: Outbox) -> None:
    refused = DeliveryOutcome(
        verdict=DeliveryVerdict.REFUSED, reason="hooks.example is 10.0.0.1: private"
    )
    for name in "abc":
        outbox.add(_message(f"job-{name}.failed"))
    given_up, delivered = _message("job-a.failed"), _message("job-b.failed")
    outbox.give_up(replace(given_up, attempts=1), refused)
    outbox.mark_delivered(replace(delivered, attempts=1), DELIVERED)
    states = [(entry.id, entry.standing) for entry in outbox.entries()]
    assert states == [
        ("job-a.failed", CallbackState.GIVEN_UP),
        ("job-c.failed", CallbackState.WAITING),
    ]
    [entry] = outbox.entries(failed=True)
    assert entry.last is not None
    assert entry.last.reason == "hooks.example is 10.0.0.1: private"
    [own] = outbox.entries_of("job-job-b.failed")
    assert (own.id, own.standing) == ("job-b.failed", CallbackState.DELIVERED)


def test_a_receiver_has_eight_permits_and_its_messages_keep_their_turn(outbox: Outbox) -> None:
    for number in range(20):
        outbox.add(_message(f"many-{number:02}", "http://many.example:81/x"))
    outbox.add(_message("one", "https://one.example/y?z"))
    first = outbox.claim(16, 60, busy={"many.example:81": 6})
    assert _ids(first) == ["many-00", "many-01", "one"]
    assert outbox.claim(16, 60, busy={"many.example:81": 8}) == []
    assert _ids(outbox.claim(16, 60, busy={"many.example:81": 7})) == ["many-02"]


def test_no_tenant_gets_more_senders_than_remain_free(outbox: Outbox) -> None:
    for tenant in ("gold", "", "tin"):
        for number in range(40):
            url = f"http://{number}.example/"
            outbox.add(replace(_message(f"{tenant}-{number}", url), tenant=tenant))
    claimed = outbox.claim(32, 60, free=32)
    assert Counter(message.tenant for message in claimed) == {"gold": 16, "": 8, "tin": 4}
    busy = Counter(message.share for message in claimed)
    assert outbox.claim(4, 60, free=4, busy=busy) == []
    assert [each.tenant for each in outbox.claim(5, 60, free=5, busy=busy)] == ["tin"]


def test_a_receiver_that_answered_gets_three_senders_more_of_its_tenant(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    client.zadd(f"{namespace}:outbox:answered", {"good.example": time.time()})
    for name in ("new", "good"):
        outbox.add(replace(_message(name, f"http://{name}.example/"), tenant="gold"))
    busy = {"other.example@gold": 8, "third.example@gold": 8}
    assert _ids(outbox.claim(9, 60, free=16, busy=busy)) == ["good"]


def test_a_receiver_is_slow_for_the_tenant_that_it_hangs_for(outbox: Outbox) -> None:
    for tenant in ("gold", "tin", ""):
        outbox.add(replace(_message(f"{tenant}-one"), tenant=tenant))
    busy = {"hooks.example@gold": 1}
    claimed = outbox.claim(9, 60, busy=busy, slow={"hooks.example@gold"})
    assert _ids(claimed) == ["tin-one", "-one"]


def test_messages_to_a_slow_receiver_do_not_hide_others(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        for number in range(450):
            outbox.add(_message(f"slow-{number:03}", "http://slow.example/x"), pipe)
        pipe.execute()
    outbox.add(_message("quick", "https://quick.example/y"))
    claims = [outbox.claim(16, 60, busy={}, slow={"slow.example"})]
    claims += [outbox.claim(16, 60, busy={"slow.example": 1}, slow={"slow.example"})]
    assert [_ids(claim) for claim in claims] == [["slow-000"], ["quick"]]
    assert outbox.count_waiting() == 451


def test_messages_to_a_busy_receiver_do_not_hide_others(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        for number in range(450):
            outbox.add(_message(f"many-{number:03}", "http://many.example/x"), pipe)
        pipe.execute()
    outbox.add(_message("one", "https://one.example/y"))
    assert _ids(outbox.claim(8, 60, busy={"many.example": 8})) == ["one"]
    assert outbox.count_waiting() == 451
    assert len(outbox.claim(8, 60)) == 8


def _add_many(client: Redis, namespace: str, host: str, before_s: float = 1.0) -> None:
    """Put 20,000 messages into the outbox, which are due since so many seconds."""
    message = _message(host, f"http://{host}.example/x").dump()
    names = [f"{host}-{number:05}" for number in range(20_000)]
    due = time.time() - before_s
    client.zadd(f"{namespace}:outbox", {name: due + at / 1e6 for at, name in enumerate(names)})
    client.hset(
        f"{namespace}:outbox:messages",
        mapping={name: message.replace(f'"{host}"', f'"{name}"') for name in names},
    )


@pytest.mark.parametrize("slow", [set(), {"many.example"}])
def test_20000_messages_that_have_to_wait_do_not_hide_a_new_one(
    outbox: Outbox, client: Redis, namespace: str, slow: set[str]
) -> None:
    _add_many(client, namespace, "many")
    client.zadd(f"{namespace}:outbox:answered", {"quick.example": time.time()})
    outbox.add(_message("quick", "https://quick.example/y"))
    places = {"many.example": 1 if slow else 8}
    claimed = outbox.claim(3, 60, busy=places, slow=slow, max_slow=0, max_unproven=0)
    assert _ids(claimed) == ["quick"]
    assert outbox.count_waiting() == 20_001


@pytest.mark.parametrize("slow", [set(), {"many.example"}])
def test_20000_messages_on_both_sides_do_not_hide_another(
    outbox: Outbox, client: Redis, namespace: str, slow: set[str]
) -> None:
    _add_many(client, namespace, "many", before_s=2.0)
    outbox.add(_message("middle", "https://quick.example/y"))
    client.zadd(f"{namespace}:outbox", {"middle": time.time() - 1.5})
    _add_many(client, namespace, "more")
    busy = {"many.example": 8, "more.example": 8}
    slow = {"many.example", "more.example"} if slow else set()
    claims = [outbox.claim(8, 60, busy=busy, slow=slow, search_every_s=0) for _ in range(6)]
    assert [_ids(claimed) for claimed in claims if claimed] == [["middle"]]


def test_messages_to_a_busy_receiver_keep_their_turn_beside_very_many_others(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    _add_many(client, namespace, "many")
    assert outbox.claim(8, 60, busy={"many.example": 8}, search_every_s=0) == []
    assert _ids(outbox.claim(2, 60)) == ["many-00000", "many-00001"]


HOUR = 3600.0


def _make_old(client: Redis, namespace: str, message: OutboxMessage, age_s: float) -> None:
    aged = replace(message, since=round(time.time() - age_s, 3))
    client.hset(f"{namespace}:outbox:messages", message.id, aged.dump())


@pytest.mark.parametrize("age_s", [0.0, 10 * HOUR, 86 * HOUR])
def test_a_message_to_a_slow_receiver_waits_the_longer_the_longer_it_has_waited(
    outbox: Outbox, client: Redis, namespace: str, age_s: float
) -> None:
    outbox.add(_message())
    _make_old(client, namespace, _message(), age_s)
    started, host = time.time(), "hooks.example"
    assert outbox.claim(8, 60, busy={host: 1}, slow={host}) == []
    pause_s = (client.zscore(f"{namespace}:outbox", "a") or 0) - started
    expected_s = {0.0: 5.0, 10 * HOUR: HOUR / 2, 86 * HOUR: HOUR}[age_s]
    assert expected_s - 1 < pause_s < expected_s * 1.1 + time.time() - started


def test_a_message_to_a_slow_receiver_that_waits_longer_than_retries_last_is_given_up_unsent(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    """A message that finds a sender is sent, and one to a receiver that is only busy keeps its
    turn, however long it has waited."""
    for number in range(200):
        outbox.add(_message(f"busy-{number:03}", "http://busy.example/x"))
    for name in ("slow", "postponed", "sent"):
        outbox.add(_message(name, f"http://{name}.example/x"))
    for name in ("busy-000", "slow", "postponed", "sent"):
        host = "busy" if name == "busy-000" else name
        _make_old(client, namespace, _message(name, f"http://{host}.example/x"), 89 * HOUR)
    busy = {"busy.example": 8, "slow.example": 1}
    claimed = outbox.claim(8, 60, busy=busy, slow={"slow.example"})
    assert set(_ids(claimed)) == {"postponed", "sent"}
    postponed = _message("postponed", "http://postponed.example/x")
    outbox.postpone(replace(postponed, since=time.time() - 89 * HOUR), 1)
    given_up = {entry.id: entry for entry in outbox.entries(failed=True)}
    assert set(given_up) == {"slow", "postponed"}
    assert outbox.count_waiting() == 201
    for entry in given_up.values():
        assert entry.last is not None
        assert entry.attempts == 0
        assert entry.last.reason == "no sender was free for it within 88 hours"
    outbox.replay("slow")
    assert outbox.claim(8, 60, busy=busy, slow={"slow.example"}) == []
    assert "slow" not in {entry.id for entry in outbox.entries(failed=True)}


def test_waiting_counts_from_the_first_look_and_ends_with_an_attempt(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    """A fleet that was off for a week has not made its callbacks wait for their receivers."""
    outbox.add(_message())
    client.zadd(f"{namespace}:outbox", {"a": 1})
    started, host = time.time(), "hooks.example"
    assert outbox.claim(8, 60, busy={host: 1}, slow={host}) == []
    client.zadd(f"{namespace}:outbox", {"a": 1})
    [message] = _claim(outbox)
    assert started - 300 < message.since < time.time() + 300
    assert replace(message, since=0.0) == _message()
    outbox.retry(replace(message, attempts=1), 0, FAILED)
    assert _claim(outbox) == [replace(_message(), attempts=1)]
    outbox.postpone(_message(), 0)
    [message] = _claim(outbox)
    assert message.since > started - 300


@pytest.mark.parametrize("end", ["delivered", "given up", "retry"])
@pytest.mark.parametrize(
    "field", ['"occurrence": {}', '"body": 1', '"x": "\\ud800"', '"body": null']
)
def test_a_callback_is_added_and_ended_beside_a_damaged_message_with_its_id(
    outbox: Outbox, client: Redis, namespace: str, field: str, end: str
) -> None:
    client.hset(f"{namespace}:outbox:messages", "a", "{" + field + "}")
    outbox.add(_message())
    [message] = _claim(outbox)
    client.hset(f"{namespace}:outbox:messages", "a", "{" + field + "}")
    if end == "delivered":
        outbox.mark_delivered(message, FAILED)
    elif end == "given up":
        outbox.give_up(message, FAILED)
    else:
        outbox.retry(message, 60, FAILED)
    assert outbox.count_waiting() == int(end == "retry")


@pytest.mark.parametrize("change", [{"body": {"a": 1}}, {"occurrence": 5}, {"job_id": None}])
def test_a_message_whose_texts_are_no_texts_is_given_up(
    outbox: Outbox, client: Redis, namespace: str, change: dict[str, object]
) -> None:
    outbox.add(_message())
    damaged = json.dumps({**json.loads(_message().dump()), **change})
    client.hset(f"{namespace}:outbox:messages", "a", damaged)
    assert _claim(outbox) == []
    assert outbox.count_waiting() == 0


def test_unreadable_messages_are_given_up_and_delay_no_others(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    message = (
        '{"id": "r", "job_id": "r", "url": "http://a.example/x", "body": "{}", "attempts": %s}'
    )
    texts = ["{", "[]", '{"id": "r3"}', "null", "[" * 100_000]
    texts += [message % attempts for attempts in ("1e999", "-100", '"1"')]
    for name, text in {f"r{number}": text for number, text in enumerate(texts)}.items():
        client.zadd(f"{namespace}:outbox", {name: 0})
        client.hset(f"{namespace}:outbox:messages", name, text)
    client.zadd(f"{namespace}:outbox", {"without a message": 0})
    outbox.add(_message("nowhere", "http://[::1/x"))
    outbox.add(_message())
    assert _ids(_claim(outbox)) == ["a"]
    assert outbox.count_waiting() == 1


def test_a_job_that_ends_adds_its_callback_in_the_outbox_format(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    request = JobRequest(prompt="a cat", callback_url="https://hooks.example/cat")
    records = JobRecords(client, namespace, 60)
    records.submit([("cat-1", request)])
    reason = JobError(code="error", message="no luck")
    event = build_callback(CallbackEvent.FAILED, "cat-1", request, error=reason)
    records.fail("cat-1", "", reason, event)
    [message] = _claim(outbox)
    assert (message.job_id, message.url) == ("cat-1", "https://hooks.example/cat")
    body = json.loads(message.body)
    assert (body["type"], body["data"]["id"]) == ("job.failed", "cat-1")


CALLBACK = JobRequest(prompt="a cat", callback_url="https://hooks.example/cat")
REASON = JobError(code="error", message="no luck")


@pytest.fixture
def records(client: Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, 60)


def _fail(records: JobRecords) -> None:
    event = build_callback(CallbackEvent.FAILED, "j", CALLBACK, error=REASON)
    assert records.fail("j", "", REASON, event).happened


def _fail_again(client: Redis, namespace: str, records: JobRecords, how: str) -> None:
    """Let job `j` fail once more: redriven, or deleted and submitted again under its id."""
    if how == "redriven":
        client.hset(f"{namespace}:job:j", "state", "queued")
    else:
        records.delete_ended("j")
        records.submit([("j", CALLBACK)])
    _fail(records)


def _webhook_id(message: OutboxMessage) -> str:
    return sign(message.event_id, message.body, [], datetime.now(UTC), message.occurrence)[
        "webhook-id"
    ]


@pytest.mark.parametrize("how", ["redriven", "submitted again"])
@pytest.mark.parametrize("end", ["delivered", "failed", "given up", "postponed"])
def test_the_try_of_a_callback_does_nothing_to_a_later_one_with_its_id(
    outbox: Outbox, client: Redis, namespace: str, records: JobRecords, how: str, end: str
) -> None:
    records.submit([("j", CALLBACK)])
    _fail(records)
    [first] = _claim(outbox)
    _fail_again(client, namespace, records, how)
    [second] = _claim(outbox)
    assert (first.id, second.id) == ("j.failed", "j.failed")
    assert _webhook_id(first) != _webhook_id(second)
    outbox.postpone(second, 0)
    tried = replace(first, attempts=1)
    if end == "delivered":
        outbox.mark_delivered(tried, DELIVERED)
    elif end == "failed":
        outbox.retry(tried, 0, FAILED)
    elif end == "given up":
        outbox.give_up(tried, FAILED)
    else:
        outbox.postpone(first, 0)
    for name in client.zrange(f"{namespace}:outbox", 0, -1):
        client.zadd(f"{namespace}:outbox", {str(name): 1})
    due = {message.body: message for message in _claim(outbox)}
    assert replace(due[second.body], since=0.0) == second
    assert (first.body in due) == (end in ("failed", "postponed"))
    if first.body in due:
        again = due[first.body]
        assert _webhook_id(again) == _webhook_id(first)
        assert again.attempts == (end == "failed")
        outbox.mark_delivered(again, DELIVERED)
        outbox.mark_delivered(second, DELIVERED)
        assert outbox.count_waiting() == 0
        assert client.hlen(f"{namespace}:outbox:messages") == 0


def test_a_callback_that_was_given_up_survives_a_later_one_with_its_id(
    outbox: Outbox, client: Redis, namespace: str, records: JobRecords
) -> None:
    records.submit([("j", CALLBACK)])
    _fail(records)
    [first] = _claim(outbox)
    outbox.give_up(first, FAILED)
    _fail_again(client, namespace, records, "submitted again")
    [second] = _claim(outbox)
    outbox.mark_delivered(second, DELIVERED)
    [entry] = outbox.entries(failed=True)
    assert entry.id == f"j.failed+{first.occurrence}"
    outbox.replay(entry.id)
    [again] = _claim(outbox)
    assert (again.body, _webhook_id(again)) == (first.body, _webhook_id(first))


@pytest.mark.parametrize("given_up", [False, True])
def test_an_event_that_happens_again_replaces_its_callback(
    outbox: Outbox, records: JobRecords, *, given_up: bool
) -> None:
    """A second attempt starts a job whose worker died."""
    request = JobRequest.parse({**CALLBACK.model_dump(), "callback_events": ["started"]})
    records.submit([("j", request)])
    for attempt in "ab":
        event = build_callback(CallbackEvent.STARTED, "j", request)
        assert start_attempt(records, "j", attempt, callback=event).happened
        if given_up and attempt == "a":
            [first] = _claim(outbox)
            outbox.give_up(first, FAILED)
    [message] = _claim(outbox)
    assert outbox.entries(failed=True) == []
    assert event is not None
    assert message.body == OutboxMessage.parse(event.message).body


@pytest.mark.parametrize("end", ["delivered", "failed"])
def test_a_callback_without_an_occurrence_is_known_by_its_body(outbox: Outbox, end: str) -> None:
    """Release 0.1.0 adds and repeats callbacks without one."""
    outbox.add(_message())
    [first] = _claim(outbox)
    later = replace(_message(), body='{"type": "job.succeeded", "again": true}')
    outbox.add(later)
    if end == "delivered":
        outbox.mark_delivered(first, DELIVERED)
    else:
        outbox.retry(first, 0, FAILED)
    [message] = _claim(outbox)
    assert message.body == later.body
