"""The outbox in a real Redis: nothing owed is forgotten, nothing settled comes back."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from redis import Redis

from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs import events
from imagefleet.shared.jobs.model import CallbackEvent, JobError, JobRequest
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.webhooks.messages import (
    CallbackState,
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.outbox import Outbox
from tests.support.processes import until

DELIVERED = DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=204)
FAILED = DeliveryOutcome(verdict=DeliveryVerdict.RETRY, status=503, reason="Service Unavailable")


@pytest.fixture
def outbox(client: Redis, namespace: str) -> Outbox:
    return Outbox(client, namespace)


def _message(name: str = "a", url: str = "http://hooks.example/x") -> OutboxMessage:
    return OutboxMessage(id=name, job_id=f"job-{name}", url=url, body='{"type": "job.succeeded"}')


def _claim(outbox: Outbox, limit: int = 10, lease_s: float = 60.0) -> list[OutboxMessage]:
    return outbox.claim(limit, lease_s)


def _names(messages: Iterable[OutboxMessage]) -> list[str]:
    return [message.id for message in messages]


def test_what_is_owed_is_due_at_once_and_claimed_once(outbox: Outbox) -> None:
    outbox.add(_message())
    assert _claim(outbox) == [_message()]
    assert _claim(outbox) == []
    assert outbox.waiting() == 1


def test_the_longest_due_go_first_and_no_more_than_asked_for(outbox: Outbox) -> None:
    for name in "abc":
        outbox.add(_message(name))
    assert _names(_claim(outbox, limit=2)) == ["a", "b"]
    assert _names(_claim(outbox, limit=2)) == ["c"]


def test_a_message_may_be_owed_within_a_pipeline(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        outbox.add(_message(), pipe)
        assert outbox.waiting() == 0
        pipe.execute()
    assert _names(_claim(outbox)) == ["a"]


def test_the_messages_of_a_sender_that_died_come_due_again(outbox: Outbox) -> None:
    outbox.add(_message())
    _claim(outbox, lease_s=0.05)
    assert _names(until(lambda: _claim(outbox))) == ["a"]


def test_a_delivered_message_is_forgotten(outbox: Outbox, client: Redis, namespace: str) -> None:
    outbox.add(_message())
    [message] = _claim(outbox, lease_s=0)
    outbox.done(message, DELIVERED)
    assert _claim(outbox) == []
    assert outbox.waiting() == 0
    assert client.hlen(f"{namespace}:outbox:messages") == 0


def test_a_failed_message_waits_for_its_pause_and_remembers_its_tries(outbox: Outbox) -> None:
    outbox.add(_message())
    [message] = _claim(outbox, lease_s=0)
    tried = OutboxMessage(id="a", job_id="job-a", url=message.url, body=message.body, attempts=1)
    outbox.retry(tried, 3600, FAILED)
    assert _claim(outbox) == []
    outbox.retry(tried, 0, FAILED)
    assert _claim(outbox) == [tried]


def test_a_late_retry_does_not_revive_what_another_sender_delivered(outbox: Outbox) -> None:
    outbox.add(_message())
    [message] = _claim(outbox, lease_s=0)
    outbox.done(message, DELIVERED)
    outbox.retry(message, 0, FAILED)
    assert _claim(outbox) == []
    assert outbox.waiting() == 0


def test_a_given_up_message_can_be_looked_at_and_replayed(outbox: Outbox) -> None:
    outbox.add(_message())
    [message] = _claim(outbox)
    outbox.give_up(message, FAILED)
    assert _claim(outbox) == []
    assert [entry.id for entry in outbox.entries(failed=True)] == ["a"]
    outbox.replay("a")
    assert _names(_claim(outbox)) == ["a"]
    assert outbox.entries(failed=True) == []


def test_a_replayed_message_starts_its_schedule_anew(outbox: Outbox) -> None:
    tired = OutboxMessage(
        id="a", job_id="job-a", url="http://hooks.example", body="{}", attempts=12
    )
    outbox.add(tired)
    outbox.give_up(tired, FAILED)
    outbox.replay("a")
    assert _claim(outbox)[0].attempts == 0


def test_only_given_up_messages_can_be_replayed(outbox: Outbox) -> None:
    outbox.add(_message())
    for message_id in ("a", "unheard-of"):
        with pytest.raises(UnknownJob):
            outbox.replay(message_id)


def test_a_receiver_that_said_gone_is_left_alone_until_it_is_enabled(outbox: Outbox) -> None:
    outbox.disable("http://hooks.example/x")
    assert outbox.disabled("http://hooks.example/x")
    assert not outbox.disabled("http://hooks.example/y")
    outbox.enable("http://hooks.example/x")
    assert not outbox.disabled("http://hooks.example/x")


def test_the_log_tells_the_latest_tries_first(outbox: Outbox) -> None:
    outbox.add(_message())
    outbox.retry(_message(), 0, FAILED)
    outbox.done(_message(), DELIVERED)
    latest, first = outbox.tries("job-a")
    assert (latest.verdict, latest.status) == (DeliveryVerdict.DELIVERED, 204)
    assert (first.verdict, first.reason) == (DeliveryVerdict.RETRY, "Service Unavailable")
    assert (first.id, first.url) == ("a", _message().url)


def test_the_log_of_a_job_is_bounded_and_expires(client: Redis, namespace: str) -> None:
    outbox = Outbox(client, namespace, retention_s=100)
    for _ in range(60):
        outbox.retry(_message(), 0, FAILED)
    assert len(outbox.tries("job-a")) == 50
    assert 0 < client.ttl(f"{namespace}:outbox:log:job-a") <= 100


def test_an_operator_sees_what_waits_what_was_given_up_and_why(outbox: Outbox) -> None:
    refused = DeliveryOutcome(
        verdict=DeliveryVerdict.REFUSED, reason="hooks.example is 10.0.0.1: private"
    )
    for name in "abc":
        outbox.add(_message(f"job-{name}.failed"))
    given_up, delivered = _message("job-a.failed"), _message("job-b.failed")
    outbox.give_up(replace(given_up, attempts=1), refused)
    outbox.done(replace(delivered, attempts=1), DELIVERED)
    standings = [(entry.id, entry.standing) for entry in outbox.entries()]
    assert standings == [
        ("job-a.failed", CallbackState.GIVEN_UP),
        ("job-c.failed", CallbackState.WAITING),
    ]
    [entry] = outbox.entries(failed=True)
    assert entry.last is not None
    assert entry.last.reason == "hooks.example is 10.0.0.1: private"
    [own] = outbox.entries_of("job-job-b.failed")
    assert (own.id, own.standing) == ("job-b.failed", CallbackState.DELIVERED)


def test_a_receiver_has_eight_places_and_keeps_its_turn(outbox: Outbox) -> None:
    for number in range(20):
        outbox.add(_message(f"many-{number:02}", "http://many.example:81/x"))
    outbox.add(_message("one", "https://one.example/y?z"))
    first = outbox.claim(16, 60, busy={"many.example:81": 6})
    assert _names(first) == ["many-00", "many-01", "one"]
    assert outbox.claim(16, 60, busy={"many.example:81": 8}) == []
    assert _names(outbox.claim(16, 60, busy={"many.example:81": 7})) == ["many-02"]


def test_messages_to_a_slow_receiver_step_out_of_the_way(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        for number in range(450):
            outbox.add(_message(f"slow-{number:03}", "http://slow.example/x"), pipe)
        pipe.execute()
    outbox.add(_message("quick", "https://quick.example/y"))
    claims = [outbox.claim(16, 60, busy={}, slow={"slow.example"})]
    claims += [
        outbox.claim(16, 60, busy={"slow.example": 1}, slow={"slow.example"}) for _ in range(2)
    ]
    assert [_names(claim) for claim in claims] == [["slow-000"], [], ["quick"]]
    assert outbox.waiting() == 451


def test_messages_to_a_busy_receiver_that_answers_hide_no_others(
    outbox: Outbox, client: Redis
) -> None:
    with client.pipeline(transaction=True) as pipe:
        for number in range(450):
            outbox.add(_message(f"many-{number:03}", "http://many.example/x"), pipe)
        pipe.execute()
    outbox.add(_message("one", "https://one.example/y"))
    claims = [_names(outbox.claim(8, 60, busy={"many.example": 8})) for _ in range(3)]
    assert claims == [[], [], ["one"]]
    assert outbox.waiting() == 451
    until(lambda: len(outbox.claim(8, 60)) == 8)  # they come back, and soon


def test_rubbish_in_the_outbox_is_put_aside_and_holds_nothing_up(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    for name, text in [("r1", "{"), ("r2", "[]"), ("r3", '{"id": "r3"}'), ("r4", "null")]:
        client.zadd(f"{namespace}:outbox", {name: 0})
        client.hset(f"{namespace}:outbox:messages", name, text)
    client.zadd(f"{namespace}:outbox", {"without a message": 0})
    outbox.add(_message("nowhere", "http://[::1/x"))
    outbox.add(_message())
    assert _names(_claim(outbox)) == ["a"]
    assert outbox.waiting() == 1


def test_a_job_that_ends_owes_its_callback_in_this_format(
    outbox: Outbox, client: Redis, namespace: str
) -> None:
    request = JobRequest(prompt="a cat", callback_url="https://hooks.example/cat")
    records = JobRecords(client, namespace, 60)
    records.submit([("cat-1", request)])
    reason = JobError(code="error", message="no luck")
    event = events.callback(CallbackEvent.FAILED, "cat-1", request, error=reason)
    records.fail("cat-1", "", reason, event)
    [message] = _claim(outbox)
    assert (message.job_id, message.url) == ("cat-1", "https://hooks.example/cat")
    body = json.loads(message.body)
    assert (body["type"], body["data"]["id"]) == ("job.failed", "cat-1")
