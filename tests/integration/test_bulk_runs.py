"""Records of runs and shards in a real Redis: allowed changes, and lost races."""

import json
from decimal import Decimal

import pytest
import redis

from imagefleet.shared.bulk.records import NewRun
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import (
    MESSAGE_VERSION,
    ShardToSend,
    bulk_queue,
    unpack_shard,
)
from imagefleet.shared.errors import (
    ConfigurationError,
    LeaseLost,
    MessageRejected,
    StorageDenied,
    UnknownRun,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from tests.support.datasets import RUN, SHARDS


@pytest.fixture
def runs(client: redis.Redis, namespace: str) -> RunRecords:
    return RunRecords(client, namespace, 60)


def _start_run(runs: RunRecords, run: NewRun = RUN) -> None:
    runs.start(run)
    runs.enqueue(run, SHARDS)


def _queue(namespace: str) -> str:
    return list_key(bulk_queue(namespace, None, None, None), RUN.priority)


def _finish_shard(
    runs: RunRecords, shard: int, *, done: int = 4, reasons: dict[str, int] | None = None
) -> State:
    runs.begin(RUN.id, shard, "a", "host")
    run = runs.succeed(RUN.id, shard, "a", "host", done, reasons or {}).run_state
    assert run is not None
    return run


def test_a_shard_is_enqueued_once_however_often_it_is_requested(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.start(RUN)
    assert [runs.enqueue(RUN, SHARDS), runs.enqueue(RUN, SHARDS)] == [3, 0]
    assert client.llen(_queue(namespace)) == 3


def test_the_message_of_a_shard_has_its_task_id_and_image_count(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    _start_run(runs)
    [envelope] = client.lrange(_queue(namespace), -1, -1)
    headers = json.loads(envelope)["headers"]
    assert (headers["task"], headers["id"]) == ("imagefleet.bulk_shard", f"{RUN.id}-00000")
    assert headers["images"] == 4


def test_only_the_attempt_that_holds_a_shard_changes_it(runs: RunRecords) -> None:
    _start_run(runs)
    runs.begin(RUN.id, 0, "first", "host-1")
    runs.begin(RUN.id, 0, "second", "host-2")
    assert not runs.holds(RUN.id, 0, "first")
    assert not runs.requeue(RUN.id, 0, "first", "host-1").happened
    with pytest.raises(LeaseLost):
        runs.report_progress(RUN.id, 0, "first", "host-1", 1, 0)
    with pytest.raises(LeaseLost):
        runs.succeed(RUN.id, 0, "first", "host-1", 4, {})
    assert runs.report_progress(RUN.id, 0, "second", "host-2", 2, 0)
    assert runs.shards(RUN.id)[0].tries == 2


def test_an_attempt_without_its_claim_begins_nothing(runs: RunRecords) -> None:
    _start_run(runs)
    assert not runs.begin(RUN.id, 0, "a", "host", ("no-such-claims", "tag")).happened


def test_a_resumed_run_counts_the_samples_of_its_workers_anew(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    _start_run(runs)
    for shard in range(3):
        _finish_shard(runs, shard)
    assert runs.get(RUN.id).images_by_worker == {"host": 12}
    runs.start(RUN)
    runs.restart_shards(RUN, SHARDS[:1])
    runs.start(RUN)  # it runs already
    _finish_shard(runs, 0, done=3)
    status = runs.get(RUN.id)
    assert (status.images, status.images_by_worker) == (11, {"host": 3})
    assert status.resumed_at is not None


def test_only_the_transition_of_the_last_shard_reports_the_end_of_the_run(runs: RunRecords) -> None:
    _start_run(runs)
    assert [_finish_shard(runs, shard) for shard in range(3)] == ["running", "running", "succeeded"]
    status = runs.get(RUN.id)
    assert (status.state, status.images, status.images_by_worker) == ("succeeded", 12, {"host": 12})
    assert status.shards_by_state[State.SUCCEEDED] == 3
    assert not runs.begin(RUN.id, 0, "b", "host").happened


def test_failed_samples_are_counted_once_by_reason(runs: RunRecords) -> None:
    _start_run(runs)
    _finish_shard(runs, 0, done=3, reasons={"device_error": 1})
    assert runs.withdraw(RUN.id, [0, 1]) == [0]
    runs.enqueue(RUN, SHARDS[:1])
    assert runs.get(RUN.id).images == 0
    _finish_shard(runs, 0, done=3, reasons={"device_error": 1})
    status = runs.get(RUN.id)
    assert (status.images, status.failed_images) == (3, 1)
    assert status.failures_by_reason == {"device_error": 1}


def test_more_failures_than_allowed_stop_the_run(runs: RunRecords) -> None:
    limited = NewRun(**{**vars(RUN), "max_failures": 1})
    _start_run(runs, limited)
    assert _finish_shard(runs, 0, done=3, reasons={"device_error": 1}) is State.RUNNING
    assert _finish_shard(runs, 1, done=3, reasons={"device_error": 1}) is State.FAILED
    assert not runs.begin(RUN.id, 2, "a", "host").happened
    assert runs.shards(RUN.id)[2].state is State.CANCELLED


def test_a_cancelled_run_releases_its_shards_and_can_be_resumed(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    _start_run(runs)
    runs.begin(RUN.id, 0, "a", "host")
    assert runs.cancel(RUN.id) is State.CANCELLED
    assert not runs.report_progress(RUN.id, 0, "a", "host", 1, 0)
    transition = runs.requeue(RUN.id, 0, "a", "host")
    assert (transition.happened, transition.run_state) == (True, State.CANCELLED)
    assert not runs.begin(RUN.id, 1, "b", "host").happened
    runs.start(RUN)
    assert runs.enqueue(RUN, SHARDS) == 2  # the third is still queued
    assert runs.get(RUN.id).shards_by_state[State.QUEUED] == 3


def test_a_run_cancelled_during_its_last_shard_finishes_when_resumed(runs: RunRecords) -> None:
    _start_run(runs)
    for shard in (0, 1):
        _finish_shard(runs, shard)
    runs.begin(RUN.id, 2, "a", "host")
    assert runs.cancel(RUN.id) is State.CANCELLED
    assert runs.succeed(RUN.id, 2, "a", "host", 4, {}).run_state is State.CANCELLED
    runs.start(RUN)
    assert runs.finish_run(RUN.id) is State.SUCCEEDED
    assert runs.cancel(RUN.id) is State.SUCCEEDED
    with pytest.raises(UnknownRun):
        runs.cancel("another")


def test_no_attempt_holds_a_requeued_shard(runs: RunRecords) -> None:
    _start_run(runs)
    runs.begin(RUN.id, 0, "a", "host")
    assert runs.requeue(RUN.id, 0, "a", "host").happened
    assert runs.shards(RUN.id)[0].state is State.QUEUED
    with pytest.raises(LeaseLost):
        runs.report_progress(RUN.id, 0, "a", "host", 1, 0)


def test_queued_and_running_shards_are_not_withdrawn(runs: RunRecords) -> None:
    _start_run(runs)
    _finish_shard(runs, 0)
    runs.begin(RUN.id, 1, "a", "host")
    assert runs.withdraw(RUN.id, range(3)) == [0]
    assert not runs.begin(RUN.id, 0, "b", "host").happened
    assert runs.holds(RUN.id, 1, "a")
    assert runs.enqueue(RUN, SHARDS) == 1


def test_shards_marked_as_finished_are_not_sent(runs: RunRecords) -> None:
    runs.start(RUN)
    runs.mark_finished(RUN.id, [(0, 4, {}), (2, 3, {"device_error": 1})])
    assert runs.enqueue(RUN, SHARDS) == 1
    assert (runs.get(RUN.id).images, runs.get(RUN.id).failed_images) == (7, 1)


def test_no_attempt_works_on_a_run_without_a_record(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    _start_run(runs)
    runs.begin(RUN.id, 0, "a", "host")
    client.delete(f"{namespace}:bulk:{RUN.id}")
    with pytest.raises(LeaseLost):
        runs.report_progress(RUN.id, 0, "a", "host", 1, 0)
    assert runs.begin(RUN.id, 1, "a", "host").run_state is None
    with pytest.raises(UnknownRun):
        runs.get(RUN.id)


def test_the_samples_of_a_cancelled_shard_are_counted_once(runs: RunRecords) -> None:
    _start_run(runs)
    runs.begin(RUN.id, 0, "a", "first")
    runs.report_progress(RUN.id, 0, "a", "first", 3, 0)
    runs.cancel(RUN.id)
    runs.requeue(RUN.id, 0, "a", "host")
    _start_run(runs)
    runs.begin(RUN.id, 0, "b", "second")
    runs.report_progress(RUN.id, 0, "b", "second", 3, 0)  # loaded from its checkpoints
    runs.succeed(RUN.id, 0, "b", "second", 4, {})
    status = runs.get(RUN.id)
    assert (status.images, status.images_by_worker) == (4, {"second": 1})


def test_the_counts_of_a_failed_shard_are_reset_when_it_is_sent_again(runs: RunRecords) -> None:
    _start_run(runs)
    runs.begin(RUN.id, 0, "a", "host")
    runs.fail(RUN.id, 0, "a", "host", 4, StorageDenied("the disk is full"))
    assert runs.get(RUN.id).failures_by_reason == {"storage_denied": 4}
    _start_run(runs)
    assert (runs.get(RUN.id).failed_images, runs.get(RUN.id).failures_by_reason) == (0, {})


def test_a_run_says_why_workers_left_its_shards_until_these_get_on(runs: RunRecords) -> None:
    _start_run(runs)
    for shard, worker in ((0, "host-1"), (1, "host-2")):
        runs.begin(RUN.id, shard, "a", worker)
        runs.requeue(RUN.id, shard, "a", worker, StorageDenied(f"the disk of {worker} is full"))
    [error] = runs.get(RUN.id).errors
    assert (error.code, error.shards) == ("storage_denied", 2)
    assert error.message in ("the disk of host-1 is full", "the disk of host-2 is full")
    assert 0 <= error.at - runs.get(RUN.id).started_at < 900
    runs.begin(RUN.id, 0, "b", "host-1")
    assert runs.get(RUN.id).errors[0].shards == 2  # it only tries again
    runs.report_progress(RUN.id, 0, "b", "host-1", 1, 0)
    [error] = runs.get(RUN.id).errors
    assert (error.worker, error.message) == ("host-2", "the disk of host-2 is full")
    _finish_shard(runs, 1)
    assert runs.get(RUN.id).errors == ()


def test_the_errors_of_failed_shards_have_their_texts_until_the_shards_are_sent_again(
    runs: RunRecords,
) -> None:
    _start_run(runs)
    for shard, error in (
        (0, ConfigurationError("pyarrow is missing at redis://me:secret@host/0\n")),
        (1, StorageDenied("a|b: no rights")),
    ):
        runs.begin(RUN.id, shard, "a", "host")
        runs.fail(RUN.id, shard, "a", "host", 4, error)
    _finish_shard(runs, 2)
    ended = runs.get(RUN.id)
    assert (ended.state, ended.failed_images) == (State.FAILED, 8)
    assert {each.code: (each.message, each.worker, each.shards) for each in ended.errors} == {
        "configuration_error": ("pyarrow is missing at redis://***@host/0\\n", "host", 1),
        "storage_denied": ("a|b: no rights", "host", 1),
    }
    _start_run(runs)
    assert runs.get(RUN.id).errors == ()


def test_the_status_leaves_out_damaged_errors_and_keeps_at_most_a_hundred(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    many = [ShardToSend(number, samples=1) for number in range(103)]
    run = NewRun(**{**vars(RUN), "shards": 103})
    runs.start(run)
    runs.enqueue(run, many)
    for shard in range(103):
        runs.begin(RUN.id, shard, "a", "host")
        runs.requeue(RUN.id, shard, "a", "host", StorageDenied("full"))
    key = f"{namespace}:bulk:{RUN.id}:errors"
    client.hset(key, "0", "no error")
    assert [(each.code, each.shards) for each in runs.get(RUN.id).errors] == [
        ("storage_denied", 99)
    ]


@pytest.mark.parametrize("end", ["success", "cancel"])
def test_all_keys_of_an_ended_run_expire(
    runs: RunRecords, client: redis.Redis, namespace: str, end: str
) -> None:
    _start_run(runs)
    assert client.ttl(f"{namespace}:bulk:{RUN.id}") == -1
    runs.begin(RUN.id, 0, "z", "host")
    runs.requeue(RUN.id, 0, "z", "host", StorageDenied("full"))
    if end == "cancel":
        runs.begin(RUN.id, 0, "a", "host")
        runs.cancel(RUN.id)
        runs.succeed(RUN.id, 0, "a", "host", 3, {"device_error": 1})
    else:
        for shard in range(3):
            _finish_shard(runs, shard, done=3, reasons={"device_error": 1})
    kept = client.keys(f"{namespace}:bulk:*")
    assert len(kept) == 4
    assert all(0 < client.ttl(key) <= 60 for key in kept)
    _start_run(runs)
    assert all(client.ttl(key) == -1 for key in kept if client.exists(key))
    client.delete(*kept)
    runs.start(NewRun(**{**vars(RUN), "id": "another"}))
    assert runs.ids() == ["another"]
    with pytest.raises(LeaseLost):
        runs.succeed(RUN.id, 1, "a", "host", 3, {"device_error": 1})
    assert not client.keys(f"{namespace}:bulk:{RUN.id}*")


def test_shard_messages_of_another_version_or_with_wrong_fields_are_rejected() -> None:
    for kwargs in (
        None,
        {},
        {"version": MESSAGE_VERSION + 1},
        {"version": 0},
        {"version": "1"},
        {"version": 1, "run": 3},
        {"version": 1, "run": "r", "destination": "d", "shard": Decimal("1E+999999999")},
        {"version": 1, "run": "r", "destination": "d", "shard": -1},
        {"version": 1, "run": "r", "destination": "d", "shard": 10**9},
        {"version": 1, "run": "r", "destination": "d", "shard": "1"},
    ):
        with pytest.raises(MessageRejected):
            unpack_shard(kwargs)
