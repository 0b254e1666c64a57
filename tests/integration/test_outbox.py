"""The outbox in a real Redis: pending callbacks are never lost, and ended ones never return."""

import json
from collections.abc import Iterable
from dataclasses import replace

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


def test_messages_to_a_slow_receiver_do_not_hide_others(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        for number in range(450):
            outbox.add(_message(f"slow-{number:03}", "http://slow.example/x"), pipe)
        pipe.execute()
    outbox.add(_message("quick", "https://quick.example/y"))
    claims = [outbox.claim(16, 60, busy={}, slow={"slow.example"})]
    claims += [
        outbox.claim(16, 60, busy={"slow.example": 1}, slow={"slow.example"}) for _ in range(2)
    ]
    assert [_ids(claim) for claim in claims] == [["slow-000"], [], ["quick"]]
    assert outbox.count_waiting() == 451


def test_messages_to_a_busy_receiver_do_not_hide_others(outbox: Outbox, client: Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        for number in range(450):
            outbox.add(_message(f"many-{number:03}", "http://many.example/x"), pipe)
        pipe.execute()
    outbox.add(_message("one", "https://one.example/y"))
    claims = [_ids(outbox.claim(8, 60, busy={"many.example": 8})) for _ in range(3)]
    assert claims == [[], [], ["one"]]
    assert outbox.count_waiting() == 451
    until(lambda: len(outbox.claim(8, 60)) == 8)  # they are due again soon


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
