"""One attempt at one shard in this process, with an event in the middle."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from imagefleet.shared.bulk.file_layout import (
    MAX_TEXT_BYTES,
    PLAN,
    archive_key,
    checkpoints_folder,
    stats_key,
)
from imagefleet.shared.bulk.plan import BulkFormat, RowParameters
from imagefleet.shared.bulk.redis_keys import run_keys
from imagefleet.shared.bulk.shard_message import ShardMessage, ShardToSend, bulk_queue
from imagefleet.shared.bulk.stats import RowFailure, ShardFile, ShardStats
from imagefleet.shared.errors import (
    ConfigurationError,
    InvalidRequest,
    LeaseLost,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_for_add_ons, list_key
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.storage import ObjectStore, StoredObject, open_store
from imagefleet.worker.bulk.add_on_queue import leave_to_holders
from imagefleet.worker.bulk.destinations import DestinationPolicy
from imagefleet.worker.bulk.format_check import require_writable
from imagefleet.worker.bulk.make_shard import make_shard
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.bulk.store_probe import StoreProbe
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims
from tests.support.datasets import ANY_FOLDER, Dataset, planned_dataset


@dataclass(frozen=True, kw_only=True)
class _Host:
    """A host that can make the shard of a dataset several times."""

    dataset: Dataset
    context: ShardContext
    queues: QueueGroup

    def make(self, shard: int = 0, destination: str | None = None) -> None:
        """Make the shard of the next message, which may name another one."""
        [claimed] = self.context.claims.claim([self.queues], 1, max_messages=1)
        self.context.backlog.add_shard(claimed)
        run = self.dataset.run
        message = ShardMessage(run=run.id, shard=shard, destination=destination or run.destination)
        make_shard(self.context, message, claimed.tag)

    def store_shard(self) -> ObjectStore:
        """Store the plan and the shard's commit marker, and return the store."""
        [shard] = self.dataset.plan.shards
        stats = ShardStats(
            shard=shard.name,
            plan_sha256=shard.sha256,
            model="fake",
            model_digest="sha256:" + "1" * 64,
            samples=1,
            files=(ShardFile(key=archive_key(shard.name), sha256="", size=0),),
        )
        store = open_store(self.dataset.run.destination)
        store.put(PLAN, self.dataset.plan.dump(), "application/json")
        store.put(stats_key(shard.name), stats.dump(), "application/json")
        return store

    def call_after_begin(self, patch: pytest.MonkeyPatch, event: Callable[[], object]) -> None:
        """Call `event` after the shard has begun and before its plan is read."""

        def opened(url: str) -> ObjectStore:
            event()
            return open_store(url)

        patch.setattr("imagefleet.worker.bulk.make_shard.open_store", opened)


@pytest.fixture
def host(
    client: redis.Redis, namespace: str, make_claims: MakeClaims, tmp_path: Path
) -> Iterator[_Host]:
    """Return a host whose shard cannot be made, because the plan is missing."""
    dataset = planned_dataset(tmp_path / "data", client, namespace, ["a"])
    dataset.send()
    (tmp_path / "data" / "plan" / "plan.json").unlink()
    queues = (bulk_queue(namespace, None, None, None),)
    backlog = RowBacklog(4)
    with ThreadPoolExecutor(1) as encoders, ThreadPoolExecutor(1) as fetchers:
        context = ShardContext(
            runs=dataset.runs,
            claims=make_claims("host"),
            backlog=backlog,
            engine=FakeEngine(),
            encoders=encoders,
            checkpoint_s=1.0,
            storage_retry_s=0.0,
            max_deliveries=1,
            destinations=ANY_FOLDER,
            store_probe=StoreProbe(backlog),
            read_workers=list,
            fetch_image=lambda request, shape: (),
            image_fetchers=fetchers,
        )
        group = QueueGroup(name="x", queues=queues, bulk=True)
        yield _Host(dataset=dataset, context=context, queues=group)


@pytest.fixture
def queue(namespace: str) -> str:
    return list_key(bulk_queue(namespace, None, None, None), 9)


def test_the_message_of_a_failed_shard_is_requeued_if_the_attempt_lost_the_shard(
    host: _Host, client: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = host.dataset
    shards = [ShardToSend(0, samples=1)]
    host.call_after_begin(monkeypatch, lambda: dataset.runs.restart_shards(dataset.run, shards))
    with pytest.raises(LeaseLost):
        host.make()
    assert client.llen(queue) == 2
    assert not client.exists(host.context.claims.key)
    assert dataset.runs.shards(dataset.run.id)[0].state is State.QUEUED


def test_a_success_that_a_failover_lost_is_recorded_by_the_next_attempt(
    host: _Host,
    client: redis.Redis,
    namespace: str,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset, claims = host.dataset, host.context.claims
    host.store_shard()
    runs, run, keys = dataset.runs, dataset.run.id, run_keys(namespace, dataset.run.id)
    ack = claims.ack

    def fail_over_and_ack(tag: str, record: str = "", *, shard: str = "") -> bool:
        client.hset(keys.shards, "0", f"running|{claims.attempt(tag)}|host|0|0|1")
        client.hset(keys.run, mapping={"state": "running", "shards:succeeded": 0})
        return ack(tag, record, shard=shard)

    with monkeypatch.context() as patch:
        patch.setattr(claims, "ack", fail_over_and_ack)
        host.make()
    assert client.llen(queue) == 1
    host.make()
    assert runs.get(run).state is State.SUCCEEDED
    assert not client.exists(queue)


def test_a_redis_failure_requeues_the_shard_without_backoff(
    host: _Host,
    client: redis.Redis,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise redis.exceptions.ReadOnlyError("You can't write against a read only replica.")

    host.call_after_begin(monkeypatch, fails)
    with pytest.raises(LeaseLost):
        host.make()
    assert client.llen(queue) == 1
    [record] = host.dataset.runs.shards(host.dataset.run.id)
    assert record.state is State.QUEUED
    assert host.context.backlog.wants_shard()  # without backoff
    assert "unexpected error" not in caplog.text


def test_a_repeated_unexpected_error_fails_the_shard(
    host: _Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprises() -> None:
        raise ZeroDivisionError

    host.call_after_begin(monkeypatch, surprises)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            host.make()
    host.make()
    status = host.dataset.runs.get(host.dataset.run.id)
    assert status.failures_by_reason == {"worker_error": 1}


def test_a_plan_that_is_too_large_to_read_fails_the_shard(host: _Host) -> None:
    """The producer chose the store. A worker that read everything there could run out of memory."""
    plan = host.dataset.folder / "plan" / "plan.json"
    plan.touch()
    os.truncate(plan, MAX_TEXT_BYTES + 1)
    host.make()
    status = host.dataset.runs.get(host.dataset.run.id)
    assert status.failures_by_reason == {"invalid_request": 1}


@pytest.mark.parametrize("moment", ["before the shard", "while its files are stored"])
def test_a_shard_leaves_no_marker_beside_the_plan_of_another_run(
    host: _Host, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store, plan = open_store(host.dataset.run.destination), host.dataset.plan
    other = plan.model_copy(update={"parameters": RowParameters(num_inference_steps=7)})
    store.put(PLAN, plan.dump(), "application/json")

    def plan_another(*_: object) -> list[StoredObject]:
        store.put(PLAN, other.dump(), "application/json")
        return []

    if moment == "before the shard":
        plan_another()
    else:
        monkeypatch.setattr("imagefleet.worker.bulk.make_shard._ShardMaker._generate", _nothing)
        monkeypatch.setattr("imagefleet.worker.bulk.make_shard.put_shard", plan_another)
    host.make()
    status = host.dataset.runs.get(host.dataset.run.id)
    assert status.failures_by_reason == {"plan_damaged": 1}
    assert not store.exists(stats_key("00000"))


def _nothing(*_: object) -> list[RowFailure]:
    return []


def _redis_fails(*_: object) -> None:
    raise redis.ConnectionError("Connection refused")


def test_a_shard_that_cannot_be_moved_to_workers_with_its_loras_is_requeued(
    host: _Host, client: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = host.context.claims
    [claimed] = claims.claim([host.queues], 1, max_messages=1)
    monkeypatch.setattr(claims, "move", _redis_fails)
    leave_to_holders(host.context, claimed.tag, {"style"})
    assert client.llen(queue) == 1
    assert not client.exists(claims.key)
    assert not host.context.backlog.wants_shard()


def test_a_shard_from_the_queue_of_its_loras_goes_back_there_and_this_worker_pauses(
    host: _Host, client: redis.Redis, queue: str
) -> None:
    """Somebody gave the worker this queue, although it lacks the LoRA."""
    own = list_for_add_ons(queue, {"style"})
    client.rename(queue, own)
    group = replace(host.queues, queues=(own.partition("\x06")[0],))
    [claimed] = host.context.claims.claim([group], 1, max_messages=1)
    leave_to_holders(host.context, claimed.tag, {"style"})
    assert client.llen(own) == 1
    assert not host.context.claims.held_tags()
    assert not host.context.backlog.wants_shard()


def test_the_message_of_a_run_without_a_record_is_deleted(
    host: _Host, client: redis.Redis, namespace: str, queue: str
) -> None:
    """The record of its shard may be left. It would requeue the message again and again."""
    client.delete(f"{namespace}:bulk:{host.dataset.run.id}")
    host.make()
    assert not client.exists(host.context.claims.key)
    assert not client.exists(queue)


def _denies(*_: object) -> None:
    raise StorageDenied("cannot delete: the server answers 403 AccessDenied")


def test_without_the_right_to_delete_a_finished_shard_is_acknowledged(
    host: _Host,
    client: redis.Redis,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host.store_shard()
    [message] = client.lrange(queue, 0, -1)
    monkeypatch.setattr("imagefleet.worker.bulk.ended_shard.delete_checkpoints", _denies)
    host.make()
    assert host.dataset.runs.get(host.dataset.run.id).state is State.SUCCEEDED
    assert "403 AccessDenied" in caplog.text
    client.lpush(queue, message)
    host.make()
    assert not client.exists(queue, host.context.claims.key)
    assert host.context.backlog.wants_shard()


def test_a_second_message_of_a_finished_dataset_without_a_plan_only_is_acknowledged(
    host: _Host, client: redis.Redis, queue: str
) -> None:
    store = host.store_shard()
    [message] = client.lrange(queue, 0, -1)
    host.make()
    store.delete(PLAN)
    [shard] = host.dataset.plan.shards
    checkpoint = f"{checkpoints_folder(shard.name)}/of-another-run.tar"
    store.put(checkpoint, b"samples", "application/x-tar")
    client.lpush(queue, message)
    host.make()
    assert not client.exists(queue, host.context.claims.key)
    assert store.get(checkpoint) == b"samples"


def test_a_second_message_of_a_finished_dataset_leaves_the_checkpoints_of_another_one_there(
    host: _Host, client: redis.Redis, queue: str
) -> None:
    store = host.store_shard()
    [message] = client.lrange(queue, 0, -1)
    host.make()
    [shard] = host.dataset.plan.shards
    other = host.dataset.plan.model_copy(update={"created_at": "later", "seed": 99})
    store.put(PLAN, other.dump(), "application/json")
    checkpoint = f"{checkpoints_folder(shard.name)}/of-another-run.tar"
    store.put(checkpoint, b"samples", "application/x-tar")
    client.lpush(queue, message)
    host.make()
    assert not client.exists(queue, host.context.claims.key)
    assert store.get(checkpoint) == b"samples"


def test_a_second_message_of_a_finished_dataset_is_acknowledged_by_a_host_that_may_not_write_there(
    host: _Host, client: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.store_shard()
    [message] = client.lrange(queue, 0, -1)
    host.make()

    def refuse(_: object, destination: str) -> None:
        raise InvalidRequest("out", destination, "is not allowed here")

    monkeypatch.setattr(DestinationPolicy, "check", refuse)
    client.lpush(queue, message)
    host.make()
    assert not client.exists(queue, host.context.claims.key)


def test_an_unavailable_store_never_fails_a_shard(
    host: _Host, client: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_down() -> None:
        raise StorageUnavailable("no answer")

    host.call_after_begin(monkeypatch, is_down)
    for _ in range(5):  # more often than any other error is tried again
        with pytest.raises(LeaseLost):
            host.make()
    assert client.llen(queue) == 1
    [record] = host.dataset.runs.shards(host.dataset.run.id)
    assert record.state is State.QUEUED


@pytest.mark.parametrize(("shard", "destination"), [(1, None), (0, "file:///elsewhere")])
def test_a_message_that_is_none_of_the_run_changes_nothing(
    host: _Host, client: redis.Redis, queue: str, shard: int, destination: str | None
) -> None:
    host.make(shard, destination)
    assert not client.exists(queue, host.context.claims.key)
    status = host.dataset.runs.get(host.dataset.run.id)
    assert status.state is State.RUNNING
    assert status.shards_by_state[State.FAILED] == 0
    assert status.shards_by_state[State.QUEUED] == 1


def test_a_shard_is_left_only_to_another_ready_worker_that_says_it_can_write_it(
    host: _Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    able = WorkerStatus(
        worker="able", state=WorkerState.READY, model="fake", shard_formats=("parquet",)
    )
    useless = [
        able.model_copy(update=changes)
        for changes in (
            {"shard_formats": ("files",)},
            {"shard_formats": None},
            {"state": WorkerState.LOST},
            {"model": "other"},
            {"worker": host.context.claims.worker},
        )
    ]
    alone = replace(host.context, read_workers=lambda: useless)
    with pytest.raises(ConfigurationError, match="needs pyarrow"):
        require_writable(alone, BulkFormat.PARQUET)
    assert alone.backlog.wants_shard()
    with pytest.raises(LeaseLost, match="left to other workers"):
        require_writable(replace(alone, read_workers=lambda: [*useless, able]), BulkFormat.PARQUET)
    assert not alone.backlog.wants_shard()
    require_writable(alone, BulkFormat.FILES)
