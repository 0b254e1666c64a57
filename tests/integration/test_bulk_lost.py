"""Shards that Redis forgot, and shards with two messages: each is made, and once."""

import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.file_layout import CARD, PLAN, RUN_STATS
from imagefleet.shared.bulk.messages import bulk_queue, pack_shard
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.transitions import ShardChange, ShardTransitions
from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import delayed_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.bulk.run_recovery import RunRecovery
from imagefleet.worker.queues.claims import Claimed, Claims, QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.datasets import RUN, SHARDS, Dataset, planned
from tests.support.processes import StartWorker, until

PROMPTS = [f"prompt {n}" for n in range(30)]
LOOKS_SOON = {"IMAGEFLEET_BULK_STALLED_S": "1"}


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
    [claimed] = claims.claim([group], 1, most=1)
    return claimed


def test_a_shard_that_waits_or_is_claimed_is_not_lost(
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
    client.ltrim(_queue(namespace), 0, 0)  # the last one's
    assert [runs.resend_lost(RUN, SHARDS), runs.resend_lost(RUN, SHARDS)] == [2, 0]
    assert client.llen(_queue(namespace)) == 3
    assert runs.get(RUN.id).shards_by_state[State.QUEUED] == 3
    assert runs.get(RUN.id).images == 3  # its part stands
    with pytest.raises(LeaseLost):
        runs.succeed(RUN.id, 1, "a", "host", 4, {})


def test_a_shard_that_another_attempt_began_since_it_was_looked_for_is_left_to_it(
    runs: RunRecords, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.begin(RUN.id, 1, "a", "host")
    client.delete(_queue(namespace))
    send = ShardTransitions.apply_all

    def late(
        moves: ShardTransitions, run: str, changes: Iterable[tuple[int, ShardChange]]
    ) -> list[int]:
        runs.begin(RUN.id, 0, "b", "host")  # of a message that came back
        runs.begin(RUN.id, 1, "c", "host")
        return send(moves, run, changes)

    monkeypatch.setattr(ShardTransitions, "enter_all", late)
    assert runs.resend_lost(RUN, SHARDS) == 1
    assert runs.holds(RUN.id, 0, "b")
    assert runs.holds(RUN.id, 1, "c")


def test_who_dies_between_looking_and_sending_leaves_the_shards_to_the_next(
    runs: RunRecords, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.delete(_queue(namespace))
    with monkeypatch.context() as patch:
        patch.setattr(ShardTransitions, "enter_all", _die)
        with pytest.raises(KeyboardInterrupt):
            runs.resend_lost(RUN, SHARDS)
    assert runs.resend_lost(RUN, SHARDS) == 3


def _die(*_: object) -> list[int]:
    raise KeyboardInterrupt


def test_a_message_in_the_claims_of_a_worker_without_a_lease_is_nowhere(
    runs: RunRecords, make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    _claim(make_claims("host"), namespace)
    client.zrem(f"{namespace}:leases", "host")
    assert runs.resend_lost(RUN, SHARDS) == 1


def test_jobs_that_wait_for_their_time_are_not_looked_through(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    """300,000 of them kept Redis busy for 4 s. A key of another kind fails whoever reads it."""
    client.set(delayed_key(namespace), "not a sorted set")
    assert runs.resend_lost(RUN, SHARDS) == 0


def test_shards_that_ended_or_whose_run_stopped_are_not_lost(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.begin(RUN.id, 0, "a", "host")
    runs.succeed(RUN.id, 0, "a", "host", 4, {})
    runs.begin(RUN.id, 1, "b", "host")
    runs.fail(RUN.id, 1, "b", "host", {"plan_damaged": 4})
    client.delete(_queue(namespace))
    assert runs.resend_lost(RUN, SHARDS) == 1
    client.delete(_queue(namespace))
    runs.cancel(RUN.id)
    assert runs.resend_lost(RUN, SHARDS) == 0


def test_of_two_messages_the_second_begins_nothing_while_the_first_is_in_hand(
    runs: RunRecords, make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    first, second = make_claims("first"), make_claims("second")
    mine = _claim(first, namespace)
    assert runs.begin(RUN.id, 0, "a", "first", (first.key, mine.tag)).happened
    client.rpush(_queue(namespace), mine.message)
    double = _claim(second, namespace)
    claim = (second.key, double.tag)
    assert not runs.begin(RUN.id, 0, "b", "second", claim).happened
    assert runs.holds(RUN.id, 0, "a")
    client.rpush(_queue(namespace), mine.message)
    again = _claim(first, namespace)
    assert not runs.begin(RUN.id, 0, "c", "first", (first.key, again.tag)).happened
    for tag in (mine.tag, again.tag):
        first.ack(tag)
    assert runs.begin(RUN.id, 0, "b", "second", claim).happened


def test_what_a_dead_worker_had_begins_elsewhere(
    runs: RunRecords, make_claims: MakeClaims, namespace: str
) -> None:
    dead, living = make_claims("dead", lease_s=0), make_claims("living")
    runs.begin(RUN.id, 0, "a", "dead", (dead.key, _claim(dead, namespace).tag))
    assert living.reclaim_expired() == [("dead", 1)]
    claimed = _claim(living, namespace)
    assert runs.begin(RUN.id, 0, "b", "living", (living.key, claimed.tag)).happened


def _stood_still(client: redis.Redis, namespace: str, seconds: int, run: str = RUN.id) -> None:
    """As if nothing had moved in the run, and nobody had looked after it, for so long."""
    key = f"{namespace}:bulk:{run}"
    client.hset(key, "moved_at", client.time()[0] - seconds)
    client.hdel(key, "looked_at")
    _may_search(client, namespace)


def _may_search(client: redis.Redis, namespace: str) -> None:
    """As if the last search for runs that stand still were long ago."""
    client.delete(f"{namespace}:bulk:looked")


def test_a_run_that_stands_still_is_given_to_one_who_asks(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    assert runs.find_stalled(30) is None
    _stood_still(client, namespace, 31)
    assert [runs.find_stalled(30), runs.find_stalled(30)] == [RUN.id, None]
    _may_search(client, namespace)
    assert runs.find_stalled(30) is None
    _stood_still(client, namespace, 31)
    runs.begin(RUN.id, 0, "a", "host")
    assert runs.find_stalled(30) is None


def test_who_dies_over_one_run_takes_no_other_with_it(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    """Who was given the first is not heard of again."""
    ids = {f"run-{n}" for n in range(5)}
    for run in ids:
        runs.start(replace(RUN, id=run))
        _stood_still(client, namespace, 31, run)
    given = runs.find_stalled(30)
    assert {runs.find_stalled(30) for _ in range(4)} == ids - {given}
    assert runs.find_stalled(30) is None


def test_a_run_that_moved_or_vanished_since_it_was_found_is_given_to_nobody(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    ids = {f"run-{n}" for n in range(3)}
    for run in ids:
        runs.start(replace(RUN, id=run))
        _stood_still(client, namespace, 31, run)
    [moved, vanished] = ids - {runs.find_stalled(30)}
    runs.begin(moved, 0, "a", "host")
    client.delete(f"{namespace}:bulk:{vanished}")
    assert runs.find_stalled(30) is None
    assert not client.exists(f"{namespace}:bulk:{vanished}")


@pytest.mark.parametrize(
    ("still_s", "looked_s", "again"),
    [(300, 240, False), (300, 360, True), (86_400, 540, False), (86_400, 601, True)],
)
def test_a_run_that_stays_still_is_looked_after_ever_more_rarely_but_every_ten_minutes(
    runs: RunRecords,
    client: redis.Redis,
    namespace: str,
    stalled_s: int,
    looked_s: int,
    again: bool,
) -> None:
    """It had stood still for `stalled_s` when it was looked after, `looked_s` ago."""
    _stood_still(client, namespace, looked_s + stalled_s)
    client.hset(f"{namespace}:bulk:{RUN.id}", "looked_at", client.time()[0] - looked_s)
    assert runs.find_stalled(30) == (RUN.id if again else None)


def test_a_run_begun_before_moves_were_noted_counts_from_now_on(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    key = f"{namespace}:bulk:{RUN.id}"
    client.hdel(key, "moved_at")
    client.hset(key, "looked_at", client.time()[0] - 86_400)
    assert runs.find_stalled(30) is None
    assert client.hexists(key, "moved_at")
    client.hincrby(key, "moved_at", -31)
    _may_search(client, namespace)
    assert [runs.find_stalled(30), runs.find_stalled(30)] == [RUN.id, None]


def test_the_fleet_searches_once_however_many_ask(
    own_redis: LocalRedisServer, namespace: str
) -> None:
    """Each search reads every run that ended lately."""
    client = connect(own_redis.url)
    runs = RunRecords(client, namespace, 60)
    for n in range(100):
        runs.start(replace(RUN, id=f"run-{n}"))
        runs.cancel(f"run-{n}")
    assert [runs.find_stalled(30) for _ in range(20)] == [None] * 20
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 100
    _may_search(client, namespace)
    runs.find_stalled(30)
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 200
    client.close()


def test_a_run_that_has_ended_or_is_forgotten_is_not_looked_after(
    runs: RunRecords, client: redis.Redis, namespace: str
) -> None:
    runs.cancel(RUN.id)
    _stood_still(client, namespace, 31)
    assert runs.find_stalled(30) is None
    client.delete(f"{namespace}:bulk:{RUN.id}")
    _may_search(client, namespace)
    assert runs.find_stalled(30) is None
    assert not client.exists(f"{namespace}:bulk:{RUN.id}")


@pytest.fixture
def dataset(client: redis.Redis, namespace: str, tmp_path: Path) -> Dataset:
    """A run of which no shard was sent, and which stands still."""
    dataset = planned(tmp_path / "data", client, namespace, PROMPTS)
    dataset.runs.start(dataset.run)
    _stood_still(client, namespace, 31, dataset.run.id)
    return dataset


def _states(dataset: Dataset) -> list[State]:
    return [shard.state for shard in dataset.runs.shards(dataset.run.id)]


def test_a_host_that_cannot_open_a_destination_leaves_the_run_to_another(
    dataset: Dataset, client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is not mounted at the first."""
    mounted = dataset.folder.rename(dataset.folder.with_name("elsewhere"))
    RunRecovery(dataset.runs, 30).recover_stalled_runs()
    assert "cannot be recovered here" in caplog.text
    mounted.rename(dataset.folder)
    _may_search(client, namespace)
    RunRecovery(dataset.runs, 30).recover_stalled_runs()
    assert _states(dataset) == [State.QUEUED] * 2


def test_a_destination_that_hangs_keeps_no_other_run_waiting(
    dataset: Dataset, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    """Reading a pipe into which nobody writes never ends; as if on a network folder."""
    pipe = tmp_path / "hangs" / PLAN
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    runs, stalled_s = dataset.runs, 1
    recovery = RunRecovery(runs, stalled_s)
    runs.start(replace(RUN, destination=(tmp_path / "hangs").as_uri()))
    try:
        for _ in range(3):
            _stood_still(client, namespace, 31)
            recovery.recover_stalled_runs()
        until(lambda: _states(dataset) == [State.QUEUED] * 2)
        hanging = [each.name for each in threading.enumerate() if each.name == f"recover-{RUN.id}"]
        assert len(hanging) == 1
    finally:
        pipe.write_bytes(b"")  # lets go of it
        until(lambda: not any(each.name == f"recover-{RUN.id}" for each in threading.enumerate()))


def test_an_error_does_not_end_the_looking(
    dataset: Dataset, client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis answers with one until the next search, which makes the set anew."""
    client.mset({f"{namespace}:bulk:looked": 1, f"{namespace}:bulk:still": "no set"})
    recovery = RunRecovery(dataset.runs, 0.1)
    recovery.start()
    try:
        until(lambda: "the search for stalled runs failed" in caplog.text)
        _may_search(client, namespace)
        until(lambda: _states(dataset) == [State.QUEUED] * 2)
    finally:
        recovery.stop()
        until(lambda: not any(each.name == "run-recovery" for each in threading.enumerate()))


def test_no_worker_sends_a_shard_whose_files_are_being_taken_away(
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long that takes: here 20 s a file."""
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    with producer.connection.runs() as runs:
        client.delete(*_lists(client, namespace))
        runs.begin(run.id, 0, "a", "host")
        runs.succeed(run.id, 0, "a", "host", 30, {})
        seen = []

        def slow(*_: object) -> None:
            client.hincrby(f"{namespace}:bulk:{run.id}", "moved_at", -20)
            _may_search(client, namespace)
            RunRecovery(runs, 30).recover_stalled_runs()
            seen.extend(shard.state for shard in runs.shards(run.id))

        monkeypatch.setattr(FolderStore, "delete", slow)
        run.resend(run.plan.shards, lambda shard: [f"{shard.name}.tar", f"{shard.name}.jsonl"])
    assert seen[:3] == [State.CANCELLED] * 3
    assert _lists(client, namespace)


def test_who_cannot_help_one_run_helps_the_next(
    runs: RunRecords,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of one the destination was taken away, of another it holds other work."""
    shutil.rmtree(planned(tmp_path / "gone", client, namespace, PROMPTS).folder)
    gone = replace(RUN, id="gone", destination=(tmp_path / "gone").as_uri())
    dataset = planned(tmp_path / "data", client, namespace, PROMPTS)
    other = replace(RUN, id="other", destination=dataset.run.destination)
    for run in (gone, other, dataset.run):
        runs.start(run)
        _stood_still(client, namespace, 31, run.id)
    RunRecovery(runs, 30).recover_stalled_runs()
    assert _states(dataset) == [State.QUEUED] * 2
    assert runs.shards("gone") == runs.shards("other") == []
    assert "gone/plan/plan.json is missing" in caplog.text
    assert "run other is stalled and cannot be recovered here" in caplog.text


def _lists(client: redis.Redis, namespace: str) -> list[str]:
    return list(client.scan_iter(f"{namespace}.bulk*"))


def _succeeds(run: BulkRun) -> bool:
    """Looking changes nothing."""
    return run.status().state is State.SUCCEEDED and run.store.exists(RUN_STATS)


def test_a_lost_shard_is_made_though_nobody_waits(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    [queue] = _lists(client, namespace)
    [message, *_] = client.lrange(queue, 0, 0)
    client.lrem(queue, 1, message)
    worker = start(**LOOKS_SOON)
    until(lambda: _succeeds(run))
    assert run.verify().clean
    with producer.connection.runs() as runs:
        assert [shard.tries for shard in runs.shards(run.id)] == [1, 1, 1]
    assert "sent 1 lost shards again" in worker.output()


def test_a_shard_in_hands_that_stand_still_is_not_sent_twice(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS[:10], tmp_path / "data")
    holder = start(IMAGEFLEET_MODEL="fake:seconds=0.3,capacity=1", IMAGEFLEET_LEASE_S="600")
    until(lambda: run.status().shards_by_state[State.RUNNING])
    holder.freeze()
    looker = start(**LOOKS_SOON)
    until(lambda: client.hexists(f"{namespace}:bulk:{run.id}", "looked_at"))
    holder.thaw()
    until(lambda: _succeeds(run))
    with producer.connection.runs() as runs:
        assert [shard.tries for shard in runs.shards(run.id)] == [1]
    assert "lost shards again" not in looker.output()


@pytest.mark.parametrize("claimed", [True, False])
def test_a_run_that_waits_for_its_turn_is_not_sent_twice(
    client: redis.Redis,
    namespace: str,
    make_claims: MakeClaims,
    tmp_path: Path,
    claimed: bool,
) -> None:
    dataset = planned(tmp_path / "data", client, namespace, PROMPTS)
    dataset.send()
    queue = list_key(bulk_queue(namespace, None, None, None), dataset.run.priority)
    if claimed:
        group = QueueGroup(name="x", queues=(bulk_queue(namespace, None, None, None),), bulk=True)
        make_claims("host").claim([group], 1, most=1)
    waiting = client.lrange(queue, 0, -1)
    client.hset(f"{namespace}:bulk:{dataset.run.id}", "moved_at", 0)
    RunRecovery(dataset.runs, 30).recover_stalled_runs()
    assert client.hexists(f"{namespace}:bulk:{dataset.run.id}", "looked_at")
    assert client.lrange(queue, 0, -1) == waiting


def test_an_end_that_a_failover_forgot_is_made_up_for(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    """The worker lives, and thinks that it is done; the record says that it still works."""
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    start(**LOOKS_SOON)
    run.wait(60)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    key = f"{namespace}:bulk:{run.id}"
    [worker] = run.status().images_by_worker
    client.hset(f"{key}:shards", "1", f"running|attempt|{worker}|0|0|1")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("0*")}
    client.hset(key, mapping={"state": "running", "shards:running": 1, "shards:succeeded": 2})
    until(lambda: _succeeds(run))
    assert run.verify().clean
    assert files == {path: path.stat().st_mtime_ns for path in files}  # its marker stood


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
    client.delete(*_lists(client, namespace))
    if again == "bulk":
        assert producer.bulk(PROMPTS, tmp_path / "data", shard_size=10) == run
    else:
        assert run.retry_failed() == 3
    start()
    assert run.wait(60).state is State.SUCCEEDED
    assert run.verify().clean


def test_a_run_whose_restart_was_killed_when_all_was_made_ends(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    start(**LOOKS_SOON)
    run.wait(60)
    until(lambda: _succeeds(run))
    (tmp_path / "data" / RUN_STATS).unlink()
    client.hset(f"{namespace}:bulk:{run.id}", "state", "running")
    until(lambda: _succeeds(run))


@pytest.mark.parametrize("again", ["bulk", "retry_failed", "nobody"])
def test_a_cancelled_run_whose_restart_was_killed_before_it_sent_all_goes_on(
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
    worker = start(**LOOKS_SOON)
    until(lambda: run.status().shards_by_state[State.CANCELLED] == 3)
    until(lambda: not _lists(client, namespace) and not client.keys(f"{namespace}:claims:*"))
    worker.freeze()  # or it sends them before anybody else does
    with monkeypatch.context() as patch:
        patch.setattr(ShardTransitions, "enter_all", _die)
        with pytest.raises(KeyboardInterrupt):
            producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    assert run.status().state is State.RUNNING
    if again == "bulk":
        producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    elif again == "retry_failed":
        assert run.retry_failed() == 3
    worker.thaw()
    until(lambda: _succeeds(run))
    assert run.verify().clean


def test_a_message_sent_twice_is_worked_on_once(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned(tmp_path / "data", client, namespace, PROMPTS, shard_size=10)
    dataset.send()
    for shard in dataset.plan.shards:
        client.rpush(*pack_shard(namespace, dataset.run, (shard.number, 10, None, None)))
    for _ in range(2):  # neither takes the other for dead
        start(IMAGEFLEET_MODEL="fake:seconds=0.05,capacity=4", IMAGEFLEET_LEASE_S="600")
    until(dataset.finished, 60)
    assert [shard.tries for shard in dataset.runs.shards(dataset.run.id)] == [1, 1, 1]
    until(lambda: not _lists(client, namespace))


@pytest.mark.parametrize("who", ["worker", "wait", "bulk"])
def test_a_run_whose_last_worker_died_before_its_summary_gets_it(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    who: str,
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    last = start()
    run.wait(60)
    until(lambda: not _lists(client, namespace))
    summary = [tmp_path / "data" / name for name in (RUN_STATS, CARD)]
    whole = [path.read_bytes() for path in summary]
    for path in summary:
        path.unlink()
    if who == "worker":  # the dead one's message comes back
        shard = (0, 30, None, None)
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
