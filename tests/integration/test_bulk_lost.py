"""Shards that Redis lost and shards with two messages are made, and made once."""

import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.file_layout import CARD, RUN_STATS
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import ShardToSend, bulk_queue, pack_shard
from imagefleet.shared.bulk.transitions import ShardChange, ShardTransitions
from imagefleet.shared.errors import LeaseLost, PlanDamaged
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import delayed_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.bulk.recover_runs import RunRecovery
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.integration.conftest import MakeClaims
from tests.support.datasets import ANY_FOLDER, RUN, SHARDS, Dataset, planned_dataset
from tests.support.processes import StartWorker, until

PROMPTS = [f"prompt {n}" for n in range(30)]
FAST_RECOVERY = {"IMAGEFLEET_BULK_STALLED_S": "1"}


@pytest.fixture
def runs(client: redis.Redis, namespace: str) -> RunRecords:
    found = RunRecords(client, namespace, 60)
    found.start(RUN)
    found.enqueue(RUN, SHARDS)
    return found


def _queue(namespace: str) -> str:
    return list_key(bulk_queue(namespace, None, None, None), RUN.priority)


def _claim(claims: Claims, namespace: str) -> Claimed:
    group = QueueGroup(name="x", queues=(bulk_queue(namespace, None, None, None),), bulk=True)
    [claimed] = claims.claim([group], 1, max_messages=1)
    return claimed


def test_a_queued_or_claimed_shard_is_not_lost(
    runs: RunRecords, make_claims: MakeClaims, namespace: str
) -> None:
    claims = make_claims("host")
    claimed = _claim(claims, namespace)
    runs.begin(RUN.id, 0, "a", "host", (claims.key, claimed.tag))
    assert runs.resend_lost(RUN, SHARDS) == 0
    claims.requeue(claimed.tag)
    assert runs.resend_lost(RUN, SHARDS) == 0


def test_a_shard_without_a_message_is_sent_again(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.begin(RUN.id, 1, "a", "host")
    runs.report_progress(RUN.id, 1, "a", "host", 3, 0)
    client.ltrim(_queue(namespace), 0, 0)  # keeps the message of the last shard
    assert [runs.resend_lost(RUN, SHARDS), runs.resend_lost(RUN, SHARDS)] == [2, 0]
    assert client.llen(_queue(namespace)) == 3
    assert runs.get(RUN.id).shards_by_state[State.QUEUED] == 3
    assert runs.get(RUN.id).images == 3  # its checkpoint is left
    with pytest.raises(LeaseLost):
        runs.succeed(RUN.id, 1, "a", "host", 4, {})


def test_a_lost_shard_that_an_attempt_began_after_the_search_is_not_sent(
    runs: RunRecords, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.begin(RUN.id, 1, "a", "host")
    client.delete(_queue(namespace))
    send = ShardTransitions.apply_all

    def late(
        moves: ShardTransitions, run: str, changes: Iterable[tuple[int, ShardChange]]
    ) -> list[int]:
        runs.begin(RUN.id, 0, "b", "host")  # with a message that was requeued
        runs.begin(RUN.id, 1, "c", "host")
        return send(moves, run, changes)

    monkeypatch.setattr(ShardTransitions, "apply_all", late)
    assert runs.resend_lost(RUN, SHARDS) == 1
    assert runs.holds(RUN.id, 0, "b")
    assert runs.holds(RUN.id, 1, "c")


def test_lost_shards_stay_lost_if_the_sender_dies_before_sending(
    runs: RunRecords, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.delete(_queue(namespace))
    with monkeypatch.context() as patch:
        patch.setattr(ShardTransitions, "apply_all", _die)
        with pytest.raises(KeyboardInterrupt):
            runs.resend_lost(RUN, SHARDS)
    assert runs.resend_lost(RUN, SHARDS) == 3


def _die(*_: object) -> list[int]:
    raise KeyboardInterrupt


def test_a_shard_claimed_by_a_worker_without_a_lease_is_lost(
    runs: RunRecords, make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    _claim(make_claims("host"), namespace)
    client.zrem(f"{namespace}:leases", "host")
    assert runs.resend_lost(RUN, SHARDS) == 1


def test_the_search_for_lost_shards_does_not_read_delayed_messages(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    """300,000 of them blocked Redis for 4 s. Reading a key of another type raises an error."""
    client.set(delayed_key(namespace), "not a sorted set")
    assert runs.resend_lost(RUN, SHARDS) == 0


def test_shards_that_ended_or_whose_run_has_stopped_are_not_lost(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.begin(RUN.id, 0, "a", "host")
    runs.succeed(RUN.id, 0, "a", "host", 4, {})
    runs.begin(RUN.id, 1, "b", "host")
    runs.fail(RUN.id, 1, "b", "host", 4, PlanDamaged("the plan has changed"))
    client.delete(_queue(namespace))
    assert runs.resend_lost(RUN, SHARDS) == 1
    client.delete(_queue(namespace))
    runs.cancel(RUN.id)
    assert runs.resend_lost(RUN, SHARDS) == 0


def test_the_second_message_of_a_shard_begins_nothing_while_the_first_is_claimed(
    runs: RunRecords, make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    first, second = make_claims("first"), make_claims("second")
    first_claim = _claim(first, namespace)
    assert runs.begin(RUN.id, 0, "a", "first", (first.key, first_claim.tag)).happened
    client.rpush(_queue(namespace), first_claim.message)
    second_claim = _claim(second, namespace)
    claim = (second.key, second_claim.tag)
    assert not runs.begin(RUN.id, 0, "b", "second", claim).happened
    assert runs.holds(RUN.id, 0, "a")
    client.rpush(_queue(namespace), first_claim.message)
    again = _claim(first, namespace)
    assert not runs.begin(RUN.id, 0, "c", "first", (first.key, again.tag)).happened
    for tag in (first_claim.tag, again.tag):
        first.ack(tag)
    assert runs.begin(RUN.id, 0, "b", "second", claim).happened


def test_another_worker_begins_the_shard_of_a_dead_worker(
    runs: RunRecords, make_claims: MakeClaims, namespace: str
) -> None:
    dead, living = make_claims("dead", lease_s=0), make_claims("living")
    runs.begin(RUN.id, 0, "a", "dead", (dead.key, _claim(dead, namespace).tag))
    assert living.lease.reclaim_expired() == [("dead", 1)]
    claimed = _claim(living, namespace)
    assert runs.begin(RUN.id, 0, "b", "living", (living.key, claimed.tag)).happened


def _make_stalled(client: redis.Redis, namespace: str, seconds: int, run: str = RUN.id) -> None:
    """Set the run as if it had neither changed nor been recovered for `seconds`."""
    key = f"{namespace}:bulk:{run}"
    client.hset(key, "moved_at", client.time()[0] - seconds)
    client.hdel(key, "looked_at")
    _allow_next_search(client, namespace)


def _allow_next_search(client: redis.Redis, namespace: str) -> None:
    """Let the next caller search for stalled runs at once."""
    client.delete(f"{namespace}:bulk:looked")


def test_a_stalled_run_is_given_to_one_caller(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    assert runs.stalled.find(30) is None
    _make_stalled(client, namespace, 31)
    assert [runs.stalled.find(30), runs.stalled.find(30)] == [RUN.id, None]
    _allow_next_search(client, namespace)
    assert runs.stalled.find(30) is None
    _make_stalled(client, namespace, 31)
    runs.begin(RUN.id, 0, "a", "host")
    assert runs.stalled.find(30) is None


def test_a_caller_that_dies_with_one_run_delays_no_other_run(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    """The caller that got the first run does not recover it."""
    ids = {f"run-{n}" for n in range(5)}
    for run in ids:
        runs.start(replace(RUN, id=run))
        _make_stalled(client, namespace, 31, run)
    given = runs.stalled.find(30)
    assert {runs.stalled.find(30) for _ in range(4)} == ids - {given}
    assert runs.stalled.find(30) is None


def test_a_run_that_changed_or_expired_after_the_search_is_given_to_nobody(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    ids = {f"run-{n}" for n in range(3)}
    for run in ids:
        runs.start(replace(RUN, id=run))
        _make_stalled(client, namespace, 31, run)
    [moved, vanished] = ids - {runs.stalled.find(30)}
    runs.begin(moved, 0, "a", "host")
    client.delete(f"{namespace}:bulk:{vanished}")
    assert runs.stalled.find(30) is None
    assert not client.exists(f"{namespace}:bulk:{vanished}")


@pytest.mark.parametrize(
    ("stalled_s", "since_last_s", "again"),
    [(300, 240, False), (300, 360, True), (86_400, 540, False), (86_400, 601, True)],
)
def test_a_run_that_stays_stalled_is_given_out_at_growing_intervals_up_to_ten_minutes(
    runs: RunRecords,
    client: redis.Redis,
    namespace: str,
    stalled_s: int,
    since_last_s: int,
    again: bool,
) -> None:
    """The run had been stalled for `stalled_s` when it was last given out, `since_last_s` ago."""
    _make_stalled(client, namespace, since_last_s + stalled_s)
    client.hset(f"{namespace}:bulk:{RUN.id}", "looked_at", client.time()[0] - since_last_s)
    assert runs.stalled.find(30) == (RUN.id if again else None)


def test_a_run_with_which_callers_die_is_given_out_at_growing_intervals_up_to_a_day(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    key = f"{namespace}:bulk:{RUN.id}"
    _make_stalled(client, namespace, 10 * 86_400)
    assert runs.stalled.find(30) == RUN.id
    for pause_s in (600, 600, 1_920, 15_360, 86_400, 86_400):
        for at, expected in ((pause_s - 60, None), (pause_s + 60, RUN.id)):
            client.hset(key, "looked_at", client.time()[0] - at)
            _allow_next_search(client, namespace)
            assert runs.stalled.find(30) == expected, (pause_s, at)
    for _ in range(8):  # once more than it was given out
        runs.stalled.recovery_ended(RUN.id)
    client.hset(key, "looked_at", client.time()[0] - 660)
    _allow_next_search(client, namespace)
    assert runs.stalled.find(30) == RUN.id


def test_a_caller_that_cannot_recover_a_run_forgets_no_caller_that_died_with_it(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    key = f"{namespace}:bulk:{RUN.id}"
    _make_stalled(client, namespace, 86_400)
    assert runs.stalled.find(30) == RUN.id
    client.hincrby(key, "looked_at", -660)
    _allow_next_search(client, namespace)
    assert runs.stalled.find(30) == RUN.id
    runs.stalled.release(RUN.id)
    assert client.hget(key, "unfinished_recoveries") == "1"
    _allow_next_search(client, namespace)
    assert runs.stalled.find(30) is None


def test_a_run_that_changes_again_forgets_the_callers_that_died(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    key = f"{namespace}:bulk:{RUN.id}"
    client.hset(key, mapping={"looked_at": client.time()[0] - 86_400, "unfinished_recoveries": 9})
    _make_stalled(client, namespace, 31)
    assert runs.stalled.find(30) == RUN.id
    assert client.hget(key, "unfinished_recoveries") == "1"


def test_a_run_without_a_stored_change_time_counts_from_the_first_search(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    key = f"{namespace}:bulk:{RUN.id}"
    client.hdel(key, "moved_at")
    client.hset(key, "looked_at", client.time()[0] - 86_400)
    assert runs.stalled.find(30) is None
    assert client.hexists(key, "moved_at")
    client.hincrby(key, "moved_at", -31)
    _allow_next_search(client, namespace)
    assert [runs.stalled.find(30), runs.stalled.find(30)] == [RUN.id, None]


def test_the_fleet_searches_once_per_interval_however_many_callers_ask(
    own_redis: LocalRedisServer, namespace: str
) -> None:
    """A search reads all runs, also those that ended lately."""
    client = connect(own_redis.url)
    runs = RunRecords(client, namespace, 60)
    for n in range(100):
        runs.start(replace(RUN, id=f"run-{n}"))
        runs.cancel(f"run-{n}")
    assert [runs.stalled.find(30) for _ in range(20)] == [None] * 20
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 100
    _allow_next_search(client, namespace)
    runs.stalled.find(30)
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 200
    client.close()


def test_a_run_that_has_ended_or_expired_is_not_stalled(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.cancel(RUN.id)
    _make_stalled(client, namespace, 31)
    assert runs.stalled.find(30) is None
    client.delete(f"{namespace}:bulk:{RUN.id}")
    _allow_next_search(client, namespace)
    assert runs.stalled.find(30) is None
    assert not client.exists(f"{namespace}:bulk:{RUN.id}")


@pytest.fixture
def dataset(client: redis.Redis, namespace: str, tmp_path: Path) -> Dataset:
    """Make a stalled run without any sent shard."""
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    dataset.runs.start(dataset.run)
    _make_stalled(client, namespace, 31, dataset.run.id)
    return dataset


def _states(dataset: Dataset) -> list[State]:
    return [shard.state for shard in dataset.runs.shards(dataset.run.id)]


def test_a_host_that_cannot_open_a_destination_leaves_the_run_to_another(
    dataset: Dataset, client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is not mounted on the first host."""
    mounted = dataset.folder.rename(dataset.folder.with_name("elsewhere"))
    RunRecovery(dataset.runs, 30, ANY_FOLDER).recover_stalled_runs()
    assert "this worker cannot recover it" in caplog.text
    mounted.rename(dataset.folder)
    _allow_next_search(client, namespace)
    RunRecovery(dataset.runs, 30, ANY_FOLDER).recover_stalled_runs()
    assert _states(dataset) == [State.QUEUED] * 2


def test_a_hanging_destination_does_not_block_other_runs(
    dataset: Dataset,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network folder may not answer for ever."""
    answers = threading.Event()
    get = FolderStore.get

    def get_from_network(store: FolderStore, key: str, max_bytes: int | None = None) -> bytes:
        if "hangs" in store.url:
            answers.wait()
        return get(store, key, max_bytes)

    monkeypatch.setattr(FolderStore, "get", get_from_network)
    (tmp_path / "hangs").mkdir()
    runs, stalled_s = dataset.runs, 1
    recovery = RunRecovery(runs, stalled_s, ANY_FOLDER)
    runs.start(replace(RUN, destination=(tmp_path / "hangs").as_uri()))
    try:
        for _ in range(3):
            _make_stalled(client, namespace, 31)
            recovery.recover_stalled_runs()
        until(lambda: _states(dataset) == [State.QUEUED] * 2)
        hanging = [each.name for each in threading.enumerate() if each.name == f"recover-{RUN.id}"]
        assert len(hanging) == 1
    finally:
        answers.set()
        until(lambda: not any(each.name == f"recover-{RUN.id}" for each in threading.enumerate()))


def test_an_error_does_not_end_the_recovery_thread(
    dataset: Dataset, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = dataset.runs.stalled.find
    errors = [redis.ResponseError("the first search fails")]

    def find_later(stalled_s: float) -> str | None:
        if errors:
            raise errors.pop()
        return find(stalled_s)

    monkeypatch.setattr(dataset.runs.stalled, "find", find_later)
    recovery = RunRecovery(dataset.runs, 0.1, ANY_FOLDER)
    recovery.start()
    try:
        until(lambda: "the search for stalled runs failed" in caplog.text)
        until(lambda: _states(dataset) == [State.QUEUED] * 2)
    finally:
        recovery.stop()
        until(lambda: not any(each.name == "run-recovery" for each in threading.enumerate()))


def test_recovery_sends_no_shard_whose_files_are_being_deleted(
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deletion may take long: here 20 s per file."""
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    with producer.connection.runs(run.id) as runs:
        client.delete(*_bulk_queues(client, namespace))
        runs.begin(run.id, 0, "a", "host")
        runs.succeed(run.id, 0, "a", "host", 30, {})
        seen: list[Any] = []

        def slow(*_: object) -> None:
            client.hincrby(f"{namespace}:bulk:{run.id}", "moved_at", -20)
            _allow_next_search(client, namespace)
            RunRecovery(runs, 30, ANY_FOLDER).recover_stalled_runs()
            seen.extend(shard.state for shard in runs.shards(run.id))

        monkeypatch.setattr(FolderStore, "delete", slow)
        run.resend(run.plan.shards, {"00000": ["00000.tar", "00000.jsonl"]})
    assert seen[:3] == [State.CANCELLED] * 3
    assert _bulk_queues(client, namespace)


def test_recovery_continues_after_runs_that_cannot_be_recovered(
    runs: RunRecords,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The destination of one run was deleted; that of another holds another plan."""
    shutil.rmtree(planned_dataset(tmp_path / "gone", client, namespace, PROMPTS).folder)
    gone = replace(RUN, id="gone", destination=(tmp_path / "gone").as_uri())
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    other = replace(RUN, id="other", destination=dataset.run.destination)
    for run in (gone, other, dataset.run):
        runs.start(run)
        _make_stalled(client, namespace, 31, run.id)
    RunRecovery(runs, 30, ANY_FOLDER).recover_stalled_runs()
    assert _states(dataset) == [State.QUEUED] * 2
    assert runs.shards("gone") == runs.shards("other") == []
    assert "gone/plan/plan.json is missing" in caplog.text
    assert "run other is stalled, and this worker cannot recover it" in caplog.text


def _bulk_queues(client: redis.Redis, namespace: str) -> list[str]:
    return list(client.scan_iter(f"{namespace}.bulk*"))


def _has_succeeded(run: BulkRun) -> bool:
    """Return whether the run and its summary are complete. This changes nothing."""
    return run.status().state is State.SUCCEEDED and run.store.exists(RUN_STATS)


def test_a_lost_shard_is_made_without_a_waiting_producer(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    [queue] = _bulk_queues(client, namespace)
    [message, *_] = client.lrange(queue, 0, 0)
    client.lrem(queue, 1, str(message))
    worker = start(**FAST_RECOVERY)
    until(lambda: _has_succeeded(run))
    assert run.verify().clean
    with producer.connection.runs(run.id) as runs:
        assert [shard.tries for shard in runs.shards(run.id)] == [1, 1, 1]
    assert "sent 1 lost shards again" in worker.output()


def test_a_shard_held_by_a_frozen_worker_is_not_sent_twice(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS[:10], tmp_path / "data")
    holder = start(IMAGEFLEET_MODEL="fake:seconds=0.3,capacity=1", IMAGEFLEET_LEASE_S="600")
    until(lambda: run.status().shards_by_state[State.RUNNING])
    holder.freeze()
    other = start(**FAST_RECOVERY)
    until(lambda: client.hexists(f"{namespace}:bulk:{run.id}", "looked_at"))
    holder.thaw()
    until(lambda: _has_succeeded(run))
    with producer.connection.runs(run.id) as runs:
        assert [shard.tries for shard in runs.shards(run.id)] == [1]
    assert "lost shards again" not in other.output()


@pytest.mark.parametrize("claimed", [True, False])
def test_the_shards_of_a_run_that_waits_in_queues_are_not_sent_twice(
    client: redis.Redis,
    namespace: str,
    make_claims: MakeClaims,
    tmp_path: Path,
    claimed: bool,
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    dataset.send()
    queue = list_key(bulk_queue(namespace, None, None, None), dataset.run.priority)
    if claimed:
        group = QueueGroup(name="x", queues=(bulk_queue(namespace, None, None, None),), bulk=True)
        make_claims("host").claim([group], 1, max_messages=1)
    waiting = client.lrange(queue, 0, -1)
    client.hset(f"{namespace}:bulk:{dataset.run.id}", "moved_at", 0)
    RunRecovery(dataset.runs, 30, ANY_FOLDER).recover_stalled_runs()
    assert client.hexists(f"{namespace}:bulk:{dataset.run.id}", "looked_at")
    assert client.lrange(queue, 0, -1) == waiting


def test_a_result_that_a_failover_lost_is_recorded_from_the_commit_marker(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    """The worker is alive and has finished, but the record says that it still runs."""
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    start(**FAST_RECOVERY)
    run.wait(300)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    key = f"{namespace}:bulk:{run.id}"
    [worker] = run.status().images_by_worker
    client.hset(f"{key}:shards", "1", f"running|attempt|{worker}|0|0|1")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("0*")}
    client.hset(key, mapping={"state": "running", "shards:running": 1, "shards:succeeded": 2})
    until(lambda: _has_succeeded(run))
    assert run.verify().clean
    assert files == {path: path.stat().st_mtime_ns for path in files}  # its commit marker was found


@pytest.mark.parametrize("again", ["bulk", "retry_failed"])
def test_the_same_command_and_retry_failed_send_lost_shards(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    again: str,
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    client.delete(*_bulk_queues(client, namespace))
    if again == "bulk":
        assert producer.bulk(PROMPTS, tmp_path / "data", shard_size=10) == run
    else:
        assert run.retry_failed() == 3
    start()
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean


def test_recovery_finishes_a_restarted_run_with_all_shards_finished(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    start(**FAST_RECOVERY)
    run.wait(300)
    until(lambda: _has_succeeded(run))
    (tmp_path / "data" / RUN_STATS).unlink()
    client.hset(f"{namespace}:bulk:{run.id}", "state", "running")
    until(lambda: _has_succeeded(run))


@pytest.mark.parametrize("again", ["bulk", "retry_failed", "nobody"])
def test_a_cancelled_run_continues_if_its_restart_died_before_sending(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: str,
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    run.cancel()
    worker = start(**FAST_RECOVERY)
    until(lambda: run.status().shards_by_state[State.CANCELLED] == 3)
    until(lambda: not _bulk_queues(client, namespace) and not client.keys(f"{namespace}:claims:*"))
    worker.freeze()  # otherwise it sends them first
    with monkeypatch.context() as patch:
        patch.setattr(ShardTransitions, "apply_all", _die)
        with pytest.raises(KeyboardInterrupt):
            producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    assert run.status().state is State.RUNNING
    if again == "bulk":
        producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    elif again == "retry_failed":
        assert run.retry_failed() == 3
    worker.thaw()
    until(lambda: _has_succeeded(run))
    assert run.verify().clean


def test_a_shard_with_two_messages_is_made_once(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS, shard_size=10)
    dataset.send()
    for shard in dataset.plan.shards:
        client.rpush(*pack_shard(namespace, dataset.run, ShardToSend(shard.number, samples=10)))
    for _ in range(2):  # no lease expires
        start(IMAGEFLEET_MODEL="fake:seconds=0.05,capacity=4", IMAGEFLEET_LEASE_S="600")
    until(dataset.is_finished)
    assert [shard.tries for shard in dataset.runs.shards(dataset.run.id)] == [1, 1, 1]
    until(lambda: not _bulk_queues(client, namespace))


@pytest.mark.parametrize("who", ["worker", "wait", "bulk"])
def test_a_missing_summary_of_a_finished_run_is_written(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    who: str,
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    last = start()
    run.wait(300)
    until(lambda: not _bulk_queues(client, namespace))
    until(lambda: not client.keys(f"{namespace}:claims:*"))  # the worker writes no summary any more
    summary = [tmp_path / "data" / name for name in (RUN_STATS, CARD)]
    whole = [path.read_bytes() for path in summary]
    for path in summary:
        path.unlink()
    if who == "worker":  # the message of the dead worker is requeued
        shard = ShardToSend(0, samples=30)
        record = replace(RUN, id=run.id, destination=run.destination)
        client.rpush(*pack_shard(namespace, record, shard))
        until(lambda: all(path.exists() for path in summary))
    elif who == "wait":
        last.kill()
        run.wait(1)
    else:
        last.kill()
        producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    assert [path.read_bytes() for path in summary] == whole
