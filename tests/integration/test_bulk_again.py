"""Shards are sent again: what is generated again, and what others may do meanwhile."""

from pathlib import Path

import pytest
import redis
from PIL import Image

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.errors import LeaseLost, ResultTimeout
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage.folder import FolderStore
from tests.support.datasets import RUN, SHARDS
from tests.support.processes import StartWorker, until

PROMPTS = ["a", "[fail]", *(f"prompt {n}" for n in range(18))]
FAST = {"IMAGEFLEET_MODEL": "fake:seconds=0.01,capacity=8"}
IMAGES = [f"inputs/{n}.png" for n in range(4)]
"""Keys of the images from which rows start."""


@pytest.fixture
def store(settings: dict[str, str]) -> Path:
    """Return the folder of the fleet's store. It holds all images but the first."""
    folder = Path(settings["IMAGEFLEET_STORAGE_URL"].removeprefix("file://"))
    (folder / "inputs").mkdir(parents=True)
    for key in IMAGES[1:]:
        _draw(folder / key)
    return folder


def _draw(path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(path)


def _tries(run: BulkRun) -> list[int]:
    with run.connection.runs(run.id) as runs:
        return [shard.tries for shard in runs.shards(run.id)]


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


@pytest.mark.parametrize("format", BulkFormat)
def test_only_samples_that_are_missing_or_damaged_are_generated_again(
    start: StartWorker, producer: Client, tmp_path: Path, store: Path, format: BulkFormat
) -> None:
    """The others could not be generated again, because the images that they start from are gone."""
    start(**FAST)
    until(producer.offers)
    rows = [{"prompt": "a", "image": image} for image in IMAGES]
    run = producer.bulk(rows, tmp_path / "data", format=format)
    assert run.wait(300).failures_by_reason == {"invalid_input": 1}
    for key in IMAGES[1:]:
        (store / key).unlink()
    _draw(store / IMAGES[0])
    assert run.retry_failed() == 1
    status = run.wait(300)
    assert (status.images, status.failed_images) == (4, 0)
    assert (run.verify().clean, run.verify().present) == (True, 4)
    (store / IMAGES[0]).unlink()
    (tmp_path / "data" / "00000.jsonl").write_text("damaged")
    assert run.repair(run.verify()) == 1
    status = run.wait(300)
    assert (status.images, status.failed_images) == (4, 0)
    assert (run.verify().clean, run.verify().present) == (True, 4)


def test_the_failed_rows_of_a_run_that_stopped_for_them_are_generated_again(
    start: StartWorker, producer: Client, tmp_path: Path, store: Path
) -> None:
    start(**FAST)
    until(producer.offers)
    rows = [{"prompt": "a", "image": image} for image in IMAGES]
    run = producer.bulk(rows, tmp_path / "data", shard_size=2, max_failures=0)
    assert run.wait(300).state is State.FAILED
    until(lambda: not run.status().shards_by_state[State.RUNNING])
    _draw(store / IMAGES[0])
    assert run.retry_failed() == 1
    status = run.wait(300)
    assert (status.state, status.images, status.failed_images) == (State.SUCCEEDED, 4, 0)
    assert run.verify().clean


def test_a_shard_that_finished_after_it_was_verified_is_not_repaired(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10)
    report = run.verify()
    start(**FAST)
    run.wait(300)
    assert {problem.what for problem in report.problems} == {"unfinished"}
    assert run.repair(report) == 0
    assert _tries(run) == [1, 1]
    assert run.verify().clean


def test_an_interrupted_repair_leaves_no_finished_shard_without_its_files(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    producer: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=20)
    start(**FAST, IMAGEFLEET_BULK_STALLED_S="1")
    run.wait(300)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    (tmp_path / "data" / "00000.tar").write_text("damaged")
    report = run.verify()
    deleted: list[str] = []

    def interrupted(store: FolderStore, key: str) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(key)
        (tmp_path / "data" / key).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "delete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.repair(report)
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean


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
    for module in ("bulk.run", "connection.outages"):
        monkeypatch.setattr(f"imagefleet.producer.{module}.time", clock)
    for timeout, now in ((0.0, 0.0), (0.7, 0.7), (30.0, 30.7)):
        with pytest.raises(ResultTimeout):
            run.wait(timeout)
        assert clock.now == pytest.approx(now)
