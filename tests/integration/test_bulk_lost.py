"""Shards that Redis forgot, and shards with two messages: each is made, and once."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from producer import Client
from producer.bulk.run import BulkRun
from shared.bulk.layout import CARD, RUN_STATS
from shared.bulk.messages import bulk_queue, packed
from shared.bulk.moves import Change, Moves
from shared.bulk.runs import Runs
from shared.errors import LeaseLost
from shared.jobs import State
from shared.queues import later_key, list_key
from tests.integration.conftest import MakeClaims
from tests.support.datasets import RUN, SHARDS, planned
from tests.support.processes import StartWorker, until
from worker.claims import Claimed, Claims, QueueGroup

PROMPTS = [f"prompt {n}" for n in range(30)]


@pytest.fixture
def runs(client: redis.Redis, namespace: str) -> Runs:
    found = Runs(client, namespace, 60)
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
    runs: Runs, make_claims: MakeClaims, namespace: str
) -> None:
    claims = make_claims("host")
    claimed = _claim(claims, namespace)
    runs.begin(RUN.id, 0, "a", "host", (claims.key, claimed.tag))
    assert runs.send_lost(RUN, SHARDS) == 0
    claims.hand_back(claimed.tag)
    assert runs.send_lost(RUN, SHARDS) == 0


def test_a_shard_without_a_message_is_sent_again(
    runs: Runs, client: redis.Redis, namespace: str
) -> None:
    runs.begin(RUN.id, 1, "a", "host")
    runs.progress(RUN.id, 1, "a", "host", 3, 0)
    client.ltrim(_queue(namespace), 0, 0)  # the last one's
    assert [runs.send_lost(RUN, SHARDS), runs.send_lost(RUN, SHARDS)] == [2, 0]
    assert client.llen(_queue(namespace)) == 3
    assert runs.get(RUN.id).shards_by_state[State.QUEUED] == 3
    assert runs.get(RUN.id).images == 3  # its part stands
    with pytest.raises(LeaseLost):
        runs.succeed(RUN.id, 1, "a", "host", 4, {})


def test_a_shard_that_another_attempt_began_since_it_was_looked_for_is_left_to_it(
    runs: Runs, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.begin(RUN.id, 1, "a", "host")
    client.delete(_queue(namespace))
    send = Moves.enter_all

    def late(moves: Moves, run: str, changes: Iterable[tuple[int, Change]]) -> list[int]:
        runs.begin(RUN.id, 0, "b", "host")  # of a message that came back
        runs.begin(RUN.id, 1, "c", "host")
        return send(moves, run, changes)

    monkeypatch.setattr(Moves, "enter_all", late)
    assert runs.send_lost(RUN, SHARDS) == 1
    assert runs.holds(RUN.id, 0, "b")
    assert runs.holds(RUN.id, 1, "c")


def test_who_dies_between_looking_and_sending_leaves_the_shards_to_the_next(
    runs: Runs, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.delete(_queue(namespace))
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "enter_all", _die)
        with pytest.raises(KeyboardInterrupt):
            runs.send_lost(RUN, SHARDS)
    assert runs.send_lost(RUN, SHARDS) == 3


def _die(*_: object) -> list[int]:
    raise KeyboardInterrupt


def test_a_message_in_the_claims_of_a_worker_without_a_lease_is_nowhere(
    runs: Runs, make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    _claim(make_claims("host"), namespace)
    client.zrem(f"{namespace}:leases", "host")
    assert runs.send_lost(RUN, SHARDS) == 1


def test_jobs_that_wait_for_their_time_are_not_looked_through(
    runs: Runs, client: redis.Redis, namespace: str
) -> None:
    """300,000 of them kept Redis busy for 4 s. A key of another kind fails whoever reads it."""
    client.set(later_key(namespace), "not a sorted set")
    assert runs.send_lost(RUN, SHARDS) == 0


def test_shards_that_ended_or_whose_run_stopped_are_not_lost(
    runs: Runs, client: redis.Redis, namespace: str
) -> None:
    runs.begin(RUN.id, 0, "a", "host")
    runs.succeed(RUN.id, 0, "a", "host", 4, {})
    runs.begin(RUN.id, 1, "b", "host")
    runs.fail(RUN.id, 1, "b", "host", {"plan_damaged": 4})
    client.delete(_queue(namespace))
    assert runs.send_lost(RUN, SHARDS) == 1
    client.delete(_queue(namespace))
    runs.cancel(RUN.id)
    assert runs.send_lost(RUN, SHARDS) == 0


def test_of_two_messages_the_second_begins_nothing_while_the_first_is_in_hand(
    runs: Runs, make_claims: MakeClaims, client: redis.Redis, namespace: str
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
    runs: Runs, make_claims: MakeClaims, namespace: str
) -> None:
    dead, living = make_claims("dead", lease_s=0), make_claims("living")
    runs.begin(RUN.id, 0, "a", "dead", (dead.key, _claim(dead, namespace).tag))
    assert living.sweep() == [("dead", 1)]
    claimed = _claim(living, namespace)
    assert runs.begin(RUN.id, 0, "b", "living", (living.key, claimed.tag)).happened


def _wait(run: BulkRun) -> State:
    *_, last = run.looks(0.05, still_s=0.2)
    return last.state


def _lists(client: redis.Redis, namespace: str) -> list[str]:
    return list(client.scan_iter(f"{namespace}.bulk*"))


def test_who_waits_has_lost_shards_made(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    [queue] = _lists(client, namespace)
    client.rpop(queue)
    start()
    until(lambda: run.status().shards_by_state[State.SUCCEEDED] == 2)
    assert _wait(run) is State.SUCCEEDED
    assert run.verify().clean


def test_an_end_that_a_failover_forgot_is_made_up_for(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client, tmp_path: Path
) -> None:
    """The worker lives, and thinks that it is done; the record says that it still works."""
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    start()
    run.wait(60)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    key = f"{namespace}:bulk:{run.id}"
    [worker] = run.status().images_by_worker
    client.hset(f"{key}:shards", "1", f"running|attempt|{worker}|0|0|1")
    client.hset(key, mapping={"state": "running", "shards:running": 1, "shards:succeeded": 2})
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("0*")}
    assert _wait(run) is State.SUCCEEDED
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


@pytest.mark.parametrize("again", ["bulk", "retry_failed", "wait"])
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
    start()
    until(lambda: run.status().shards_by_state[State.CANCELLED] == 3)
    until(lambda: not _lists(client, namespace) and not client.keys(f"{namespace}:claims:*"))
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "enter_all", _die)
        with pytest.raises(KeyboardInterrupt):
            producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    assert run.status().state is State.RUNNING
    if again == "bulk":
        producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    elif again == "retry_failed":
        assert run.retry_failed() == 3
    assert _wait(run) is State.SUCCEEDED
    assert run.verify().clean


def test_a_message_sent_twice_is_worked_on_once(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned(tmp_path / "data", client, namespace, PROMPTS, shard_size=10)
    dataset.send()
    for shard in dataset.plan.shards:
        client.rpush(*packed(namespace, dataset.run, (shard.number, 10, None, None)))
    for _ in range(2):
        start(IMAGEFLEET_MODEL="fake:seconds=0.05,capacity=4")
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
        client.rpush(*packed(namespace, record, shard))
        until(lambda: all(path.exists() for path in summary))
    elif who == "wait":
        last.kill()
        run.wait(1)
    else:
        last.kill()
        producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    assert [path.read_bytes() for path in summary] == whole
