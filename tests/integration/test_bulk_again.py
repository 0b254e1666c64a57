"""Shards are sent again while another producer resumes or waits, or a worker holds them."""

from pathlib import Path

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.errors import LeaseLost, ResultTimeout
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage.folder import FolderStore
from tests.support.datasets import RUN, SHARDS
from tests.support.processes import StartWorker, until

PROMPTS = ["a", "[fail]", *(f"prompt {n}" for n in range(18))]
FAST = {"IMAGEFLEET_MODEL": "fake:seconds=0.01,capacity=8"}


@pytest.mark.parametrize("again", ["retry_failed", "repair"])
def test_resuming_a_run_while_files_are_deleted_loses_no_shard(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: str,
) -> None:
    """A worker finds the old commit marker and records success before the marker is deleted."""
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    start(**FAST)
    run.wait(300)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    if again == "repair":
        (tmp_path / "data" / "00000.tar").write_bytes(b"damaged")
    report = run.verify()
    other, delete = producer.find_bulk(str(tmp_path / "data")), FolderStore.delete
    resumed: list[str] = []

    def slow(store: FolderStore, key: str) -> None:
        if not resumed:
            resumed.append(key)
            other.resume(max_failures=None, priority=3)
            until(lambda: other.status().state is State.SUCCEEDED)
        delete(store, key)

    monkeypatch.setattr(FolderStore, "delete", slow)
    assert (run.retry_failed() if again == "retry_failed" else run.repair(report)) == 1
    status = run.wait(300)
    assert (status.state, status.images, status.failed_images) == (State.SUCCEEDED, 19, 1)
    assert run.verify().clean
    assert (tmp_path / "data" / "stats.json").exists()


def test_a_restarted_shard_is_taken_from_the_attempt_that_holds_it(
    client: redis.Redis, namespace: str
) -> None:
    runs = RunRecords(client, namespace, 60)
    runs.start(RUN)
    runs.enqueue(RUN, SHARDS)
    for shard in (0, 1):
        runs.begin(RUN.id, shard, "a", "host")
    runs.report_progress(RUN.id, 0, "a", "host", 3, 0)
    runs.succeed(RUN.id, 1, "a", "host", 3, {"device_error": 1})
    assert runs.restart_shards(RUN, SHARDS) == 2  # the third is queued
    with pytest.raises(LeaseLost):
        runs.succeed(RUN.id, 0, "a", "host", 4, {})
    status = runs.get(RUN.id)
    assert status.shards_by_state[State.QUEUED] == 3
    assert (status.images, status.failed_images, status.failures_by_reason) == (0, 0, {})


class _Clock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_wait_ends_after_its_timeout(
    producer: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = producer.bulk(PROMPTS, tmp_path / "data"), _Clock()
    for module in ("bulk.run", "outages"):
        monkeypatch.setattr(f"imagefleet.producer.{module}.time", clock)
    for timeout, now in ((0.0, 0.0), (0.7, 0.7), (30.0, 30.7)):
        with pytest.raises(ResultTimeout):
            run.wait(timeout)
        assert clock.now == pytest.approx(now)
