"""The records of runs put each event of a run into the outbox once, whatever happens in between."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from imagefleet.shared.bulk.records import NewRun
from imagefleet.shared.bulk.redis_keys import run_key
from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.jobs.model import State
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.shared.webhooks.signature import sign
from tests.support.datasets import RUN, SHARDS
from tests.support.processes import until

RECEIVER = RunReceiver(
    url="https://hooks.example/runs?a=1",
    name=RUN.id,
    tenant="gold",
    data={"destination": "file:///somewhere/", "rows": 12, "rejected": 2, "metadata": {"é": '"/'}},
)
TOLD: NewRun = replace(RUN, receiver=RECEIVER)
ALL_SHARDS = range(RUN.shards)
STALLED_S = 1.0
DELIVERED = DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=204)

Deliver = Callable[[], list[tuple[str, dict[str, Any]]]]


@pytest.fixture
def runs(client: redis.Redis, namespace: str) -> RunRecords:
    return RunRecords(client, namespace, 60)


@pytest.fixture
def outbox(client: redis.Redis, namespace: str) -> Outbox:
    return Outbox(client, namespace)


@pytest.fixture
def deliver(outbox: Outbox) -> Deliver:
    """Return a function that delivers what waits, in the order of the events, and returns the type
    and the data of each."""

    def deliver() -> list[tuple[str, dict[str, Any]]]:
        bodies = []
        while messages := outbox.claim(100, 60):
            for message in messages:
                outbox.mark_delivered(message, DELIVERED)
                bodies.append(json.loads(message.body))
        told = [(body["type"], body["data"]) for body in bodies]
        return sorted(told, key=lambda each: each[1]["sequence"])

    return deliver


def _send(runs: RunRecords, run: NewRun = TOLD) -> None:
    runs.start(run)
    runs.enqueue(run, SHARDS)


def _begin(runs: RunRecords, shard: int) -> None:
    assert runs.begin(RUN.id, shard, "a", "host").happened


def _finish(
    runs: RunRecords, shard: int, done: int = 4, reasons: Mapping[str, int] | None = None
) -> None:
    _begin(runs, shard)
    runs.succeed(RUN.id, shard, "a", "host", done, reasons or {})


def _finish_all(runs: RunRecords) -> None:
    for shard in ALL_SHARDS:
        _finish(runs, shard)


def _kinds(events: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, int]]:
    return [(kind.removeprefix("run."), data["progress"]) for kind, data in events]


def _read_summary(runs: RunRecords) -> None:
    """Report the end as a worker does when the summary of a run that succeeded is written."""
    runs.events.report_end(RUN.id)


def test_an_event_says_what_was_planned_and_what_was_counted(
    runs: RunRecords, outbox: Outbox
) -> None:
    _send(runs)
    _begin(runs, 0)
    runs.report_progress(RUN.id, 0, "a", "host", 3, 1)
    started, progress = sorted(outbox.claim(9, 60), key=lambda each: each.id, reverse=True)
    assert (started.id, started.job_id, started.url, started.tenant) == (
        f"{RUN.id}.started",
        RUN.id,
        RECEIVER.url,
        "gold",
    )
    assert progress.id == f"{RUN.id}.progress.30"
    body = json.loads(progress.body)
    assert body.keys() == {"type", "timestamp", "data"}
    assert body["type"] == "run.progress"
    assert body["data"] == {
        "id": RUN.id,
        "destination": "file:///somewhere/",
        "rows": 12,
        "rejected": 2,
        "metadata": {"é": '"/'},
        "state": "running",
        "sequence": 2,
        "progress": 30,
        "samples": 12,
        "images": 3,
        "failed_images": 1,
        "shards": 3,
        "shards_by_state": {"queued": 2, "running": 1, "succeeded": 0, "failed": 0, "cancelled": 0},
    }


@pytest.mark.parametrize(
    "seconds", [0, 951782399, 951782400, 1709251199, 1735689599, 4107542400, 1764000000]
)
def test_the_time_of_an_event_is_that_of_the_server(
    client: redis.Redis, seconds: int, runs: RunRecords
) -> None:
    """The ends of months and of leap years, which the script counts by itself."""
    script = str(runs.events._script.script).partition("-- Report to the receiver")[0]
    answer = client.eval(f"{script}\nreturn rfc3339({seconds}, 42)", 0)
    expected = datetime.fromtimestamp(seconds, UTC).replace(microsecond=42)
    assert answer == expected.isoformat()


def test_the_time_in_a_body_is_now(runs: RunRecords, outbox: Outbox, client: redis.Redis) -> None:
    before = client.time()[0]
    _send(runs)
    _begin(runs, 0)
    [message] = outbox.claim(9, 60)
    at = datetime.fromisoformat(json.loads(message.body)["timestamp"]).timestamp()
    assert before <= at < client.time()[0] + 1


def test_each_tenth_is_told_once_and_several_at_once_are_one(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs)
    assert deliver() == []
    for shard in ALL_SHARDS:
        _begin(runs, shard)
        for done in (1, 1, 2, 3, 4):
            runs.report_progress(RUN.id, shard, "a", "host", done, 0)
        runs.succeed(RUN.id, shard, "a", "host", 4, {})
    told = deliver()
    assert _kinds(told) == [
        ("started", 0),
        *(("progress", percent) for percent in (10, 20, 30, 40, 50, 60, 70, 80, 90)),
    ]
    _read_summary(runs)
    [(kind, data)] = deliver()
    assert (kind, data["state"], data["progress"], data["images"]) == (
        "run.ended",
        "succeeded",
        100,
        12,
    )
    assert [each["sequence"] for _, each in [*told, (kind, data)]] == list(range(1, 12))


def test_a_jump_over_several_tenths_is_one_event(runs: RunRecords, deliver: Deliver) -> None:
    _send(runs)
    _finish(runs, 0)
    _finish(runs, 1, 3, {"device_error": 1})
    assert _kinds(deliver()) == [("started", 0), ("progress", 30), ("progress", 60)]


def test_images_that_a_dead_worker_lost_are_not_told_twice(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs)
    _begin(runs, 0)
    runs.report_progress(RUN.id, 0, "a", "host", 3, 0)
    assert runs.begin(RUN.id, 0, "b", "other").happened
    runs.report_progress(RUN.id, 0, "b", "other", 0, 0)
    runs.report_progress(RUN.id, 0, "b", "other", 2, 0)
    assert _kinds(deliver()) == [("started", 0), ("progress", 20)]
    runs.report_progress(RUN.id, 0, "b", "other", 4, 0)
    assert _kinds(deliver()) == [("progress", 30)]


def test_the_end_of_a_run_that_succeeded_waits_for_its_summary(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs)
    _finish_all(runs)
    assert runs.get(RUN.id).state is State.SUCCEEDED
    assert ("ended", 100) not in _kinds(deliver())
    _read_summary(runs)
    _read_summary(runs)
    assert _kinds(deliver()) == [("ended", 100)]
    _read_summary(runs)
    assert deliver() == []


def test_a_run_whose_shards_fail_is_told_at_once(runs: RunRecords, deliver: Deliver) -> None:
    _send(runs)
    for shard in ALL_SHARDS:
        _begin(runs, shard)
        runs.fail(RUN.id, shard, "a", "host", 4, PlanDamaged("the plan has changed"))
    kind, data = deliver()[-1]
    assert (kind, data["state"], data["failed_images"], data["shards_by_state"]["failed"]) == (
        "run.ended",
        "failed",
        12,
        3,
    )


def test_too_many_failures_and_a_cancel_end_a_run_once(runs: RunRecords, deliver: Deliver) -> None:
    _send(runs, replace(TOLD, max_failures=1))
    _finish(runs, 0, 2, {"device_error": 2})
    assert _kinds(deliver()) == [("started", 0), ("ended", 30)]
    assert runs.cancel(RUN.id) is State.FAILED
    _send(runs)
    _begin(runs, 1)
    assert _kinds(deliver()) == [("started", 30)]
    assert [runs.cancel(RUN.id), runs.cancel(RUN.id)] == [State.CANCELLED, State.CANCELLED]
    runs.requeue(RUN.id, 1, "a", "host")
    [(kind, data)] = deliver()
    assert (kind, data["state"]) == ("run.ended", "cancelled")


def test_a_resumed_run_with_nothing_left_to_do_ends_silently(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs)
    _finish_all(runs)
    _read_summary(runs)
    deliver()
    _send(runs)
    assert runs.finish_run(RUN.id) is State.SUCCEEDED
    _read_summary(runs)
    assert deliver() == []


def test_a_cancelled_run_that_was_complete_is_told_as_succeeded(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs)
    for shard in (0, 1):
        _finish(runs, shard)
    _begin(runs, 2)
    runs.cancel(RUN.id)
    runs.succeed(RUN.id, 2, "a", "host", 4, {})
    deliver()
    runs.start(TOLD)
    assert runs.finish_run(RUN.id) is State.SUCCEEDED
    _read_summary(runs)
    [(kind, data)] = deliver()
    assert (kind, data["state"]) == ("run.ended", "succeeded")


def test_repaired_shards_are_told_as_another_end(
    runs: RunRecords, deliver: Deliver, outbox: Outbox
) -> None:
    _send(runs)
    _finish_all(runs)
    _read_summary(runs)
    first = {message.id: _webhook_id(message) for message in outbox.claim(100, 0)}
    deliver()
    runs.start(RUN)
    runs.restart_shards(RUN, SHARDS[:1])
    _finish(runs, 0)
    _read_summary(runs)
    again = {message.id: _webhook_id(message) for message in outbox.claim(100, 0)}
    assert again.keys() == {f"{RUN.id}.{name}" for name in ("started", "ended")}
    assert all(again[name] != first[name] for name in again)
    assert _kinds(deliver()) == [("started", 60), ("ended", 100)]


def _webhook_id(message: OutboxMessage) -> str:
    headers = sign(message.event_id, message.body, [], datetime.now(UTC), message.occurrence)
    return headers["webhook-id"]


def test_an_event_that_a_failover_lost_has_the_same_id(
    runs: RunRecords, outbox: Outbox, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    for shard in (0, 1):
        _finish(runs, shard)
    _begin(runs, 2)
    keys = client.keys(f"{namespace}:bulk:{RUN.id}*")
    before: dict[Any, dict[Any, Any]] = {key: client.hgetall(key) for key in keys}
    runs.succeed(RUN.id, 2, "a", "host", 4, {})
    _read_summary(runs)
    first = {message.id: _webhook_id(message) for message in outbox.claim(100, 0)}
    for key, fields in before.items():
        client.delete(key)
        client.hset(key, mapping=fields)
    runs.succeed(RUN.id, 2, "a", "host", 4, {})
    _read_summary(runs)
    assert {message.id: _webhook_id(message) for message in outbox.claim(100, 0)} == first


def test_a_receiver_that_is_new_to_an_ended_run_is_told_its_end(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs, RUN)
    _finish_all(runs)
    _read_summary(runs)
    assert deliver() == []
    runs.events.set_receiver(RUN.id, RECEIVER)
    runs.events.set_receiver(RUN.id, RECEIVER)
    assert _kinds(deliver()) == [("ended", 100)]
    runs.events.set_receiver(RUN.id, replace(RECEIVER, url="https://other.example/"))
    assert _kinds(deliver()) == [("ended", 100)]


def test_a_receiver_that_is_new_to_a_running_run_is_told_that_it_has_started(
    runs: RunRecords, deliver: Deliver
) -> None:
    _send(runs, RUN)
    _finish(runs, 0)
    _begin(runs, 1)
    runs.start(TOLD)
    assert _kinds(deliver()) == [("started", 30)]
    runs.start(RUN)
    runs.report_progress(RUN.id, 1, "a", "host", 2, 0)
    assert _kinds(deliver()) == [("progress", 50)]


def test_a_receiver_without_a_run_changes_nothing(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.events.set_receiver(RUN.id, RECEIVER)
    runs.events.report_end(RUN.id)
    assert not runs.events.report_end_again(RUN.id)
    assert client.keys(f"{namespace}*") == []


def test_the_end_can_be_told_once_more_under_another_id(
    runs: RunRecords, outbox: Outbox, deliver: Deliver
) -> None:
    _send(runs)
    runs.cancel(RUN.id)
    [first] = outbox.claim(9, 0)
    deliver()
    assert runs.events.report_end_again(RUN.id)
    [again] = outbox.claim(9, 0)
    assert again.id == first.id
    assert _webhook_id(again) != _webhook_id(first)


def test_an_empty_run_is_told_as_ended(runs: RunRecords, deliver: Deliver) -> None:
    runs.start(replace(TOLD, shards=0, samples=0))
    assert runs.finish_run(RUN.id) is State.SUCCEEDED
    _read_summary(runs)
    assert _kinds(deliver()) == [("ended", 100)]


def _search(runs: RunRecords, client: redis.Redis, namespace: str) -> None:
    """Search the runs as the next worker does, although the last search was just now."""
    client.delete(f"{namespace}:bulk:looked")
    runs.stalled.find(STALLED_S)


def _age(client: redis.Redis, namespace: str, field: str, hours: int = 1) -> None:
    """Let a time in the record of the run be earlier."""
    key = run_key(namespace, RUN.id)
    client.hset(key, field, int(client.hget(key, field) or 0) - 3600 * hours)


def test_a_run_without_an_image_for_long_is_told_once_until_it_goes_on(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _begin(runs, 0)
    _search(runs, client, namespace)
    assert _kinds(deliver()) == [("started", 0)]
    _age(client, namespace, "idle_since")
    for _ in range(2):
        _search(runs, client, namespace)
    [(kind, data)] = deliver()
    assert (kind, data["state"]) == ("run.stalled", "running")
    assert 3600 <= data["idle_s"] < 3900
    runs.report_progress(RUN.id, 0, "a", "host", 1, 0)
    _search(runs, client, namespace)
    _search(runs, client, namespace)
    assert deliver() == []
    _age(client, namespace, "idle_since", hours=2)
    _search(runs, client, namespace)
    assert _kinds(deliver()) == [("stalled", 0)]


def test_attempts_that_make_no_image_do_not_hide_that_a_run_is_stalled(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _search(runs, client, namespace)
    _age(client, namespace, "idle_since")
    for attempt in "abc":
        assert runs.begin(RUN.id, 0, attempt, "host").happened
        assert runs.requeue(RUN.id, 0, attempt, "host", PlanDamaged("x")).happened
    _search(runs, client, namespace)
    assert _kinds(deliver()) == [("started", 0), ("stalled", 0)]


def test_a_resumed_run_is_not_stalled_for_the_time_in_which_it_had_ended(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _search(runs, client, namespace)
    runs.cancel(RUN.id)
    _age(client, namespace, "idle_since")
    _search(runs, client, namespace)
    _send(runs)
    _search(runs, client, namespace)
    assert _kinds(deliver()) == [("ended", 0)]


def test_a_search_tells_what_a_worker_of_an_older_release_did_not(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    """Its scripts know no receivers, so a record without one stands for what they do."""
    key = run_key(namespace, RUN.id)
    _send(runs)
    receiver = {
        name: client.hget(key, name) for name in ("callback", "callback_data", "reported_tenths")
    }
    client.hdel(key, *receiver)
    _finish(runs, 0)
    _begin(runs, 1)
    client.hset(key, mapping={name: value for name, value in receiver.items() if value})
    for _ in range(2):
        _search(runs, client, namespace)
    assert _kinds(deliver()) == [("started", 30)]
    client.hdel(key, "callback")
    runs.succeed(RUN.id, 1, "a", "host", 4, {})
    _finish(runs, 2)
    client.hset(key, "callback", RECEIVER.callback)
    _search(runs, client, namespace)
    assert deliver() == []  # its summary may not be written yet
    _age(client, namespace, "finished_at")
    for _ in range(2):
        _search(runs, client, namespace)
    assert _kinds(deliver()) == [("ended", 100)]


def test_a_search_leaves_the_end_to_who_writes_the_summary(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _finish_all(runs)
    deliver()
    with runs.events.summing_up(RUN.id):
        until(lambda: client.hexists(run_key(namespace, RUN.id), "summing_at"))
        _age(client, namespace, "finished_at")
        _search(runs, client, namespace)
        assert deliver() == []
    assert _kinds(deliver()) == [("ended", 100)]
    _search(runs, client, namespace)
    assert deliver() == []


def _fail_to_sum_up(runs: RunRecords, client: redis.Redis, namespace: str) -> None:
    with runs.events.summing_up(RUN.id):
        until(lambda: client.hexists(run_key(namespace, RUN.id), "summing_at"))
        raise PlanDamaged("the store cannot be reached")


def test_a_search_tells_the_end_if_the_writer_of_the_summary_is_gone(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _finish_all(runs)
    deliver()
    with pytest.raises(PlanDamaged):
        _fail_to_sum_up(runs, client, namespace)
    _age(client, namespace, "finished_at")
    _search(runs, client, namespace)
    assert deliver() == []
    _age(client, namespace, "summing_at")
    _search(runs, client, namespace)
    assert _kinds(deliver()) == [("ended", 100)]


def test_a_search_tells_the_end_if_the_writer_of_the_summary_hangs_for_a_day(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _finish_all(runs)
    deliver()
    with runs.events.summing_up(RUN.id):
        until(lambda: client.hexists(run_key(namespace, RUN.id), "summing_at"))
        _age(client, namespace, "finished_at", hours=23)
        _search(runs, client, namespace)
        assert deliver() == []
        _age(client, namespace, "finished_at", hours=1)
        _search(runs, client, namespace)
        assert _kinds(deliver()) == [("ended", 100)]
    assert deliver() == []


def test_a_summary_of_a_run_without_a_record_leaves_none(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    with runs.events.summing_up(RUN.id):
        runs.events._renew_script(keys=[run_key(namespace, RUN.id)])
    assert client.keys(f"{namespace}*") == []


def test_a_record_that_is_made_anew_counts_from_1_with_later_times(
    runs: RunRecords, outbox: Outbox, client: redis.Redis, namespace: str
) -> None:
    told = []
    for _ in range(2):
        _send(runs)
        _begin(runs, 0)
        runs.report_progress(RUN.id, 0, "a", "host", 4, 0)
        for message in outbox.claim(9, 60):
            outbox.mark_delivered(message, DELIVERED)
            body = json.loads(message.body)
            told.append((body["timestamp"], body["data"]["sequence"]))
        client.delete(*client.keys(f"{namespace}:bulk*"))
    assert [sequence for _, sequence in sorted(told)] == [1, 2, 1, 2]


def test_an_end_that_nobody_told_is_told_before_the_run_starts_anew(
    runs: RunRecords, deliver: Deliver
) -> None:
    """The worker died between its last record and the summary, and somebody repairs the dataset."""
    _send(runs)
    _finish_all(runs)
    deliver()
    runs.start(RUN)
    runs.restart_shards(RUN, SHARDS[:1])
    _begin(runs, 0)
    assert _kinds(deliver()) == [("ended", 100), ("started", 60)]


@pytest.mark.parametrize(
    "fields",
    [
        {"callback": "x"},
        {"callback": '{"job_id": 7}'},
        {"callback": "[1]"},
        {"callback_data": ""},
        {"callback_data": '{"id": null}'},
        {"reported_events": "x", "reported_tenths": "-", "reported_ends": "\0", "samples": "12"},
        {"images": "-7", "started_at": "-1"},
    ],
)
def test_a_damaged_receiver_stops_no_shard(
    runs: RunRecords, outbox: Outbox, client: redis.Redis, namespace: str, fields: dict[Any, Any]
) -> None:
    _send(runs)
    client.hset(run_key(namespace, RUN.id), mapping=fields)
    _finish_all(runs)
    _search(runs, client, namespace)
    _read_summary(runs)
    for message in outbox.claim(100, 60):
        assert json.loads(message.body)["data"]["id"] == RUN.id
    assert client.hget(run_key(namespace, RUN.id), "state") == State.SUCCEEDED


def test_runs_whose_keys_hold_something_else_are_passed_over(
    runs: RunRecords, deliver: Deliver, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    client.set(run_key(namespace, "other"), "no hash")
    client.zadd(f"{namespace}:bulk", {"other": 1})
    _search(runs, client, namespace)
    _begin(runs, 0)
    assert _kinds(deliver()) == [("started", 0)]


def test_the_record_of_an_ended_run_expires_also_if_it_is_told(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    _send(runs)
    _finish_all(runs)
    _read_summary(runs)
    for key in until(lambda: client.keys(f"{namespace}:bulk:{RUN.id}*")):
        assert 0 < client.ttl(key) <= 60
