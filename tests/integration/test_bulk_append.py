"""Rows are appended to datasets that real workers have made, or are making."""

import hashlib
import json
from pathlib import Path

import pytest

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import PlanConflict
from imagefleet.shared.jobs.model import State
from tests.support.processes import StartWorker, until

PROMPTS = [f"prompt {n}" for n in range(25)]
MORE = [f"new prompt {n}" for n in range(12)]
FAST = {"IMAGEFLEET_MODEL": "fake:seconds=0.01,capacity=8"}


def _digests(folder: Path) -> dict[str, str]:
    """Return the digests of all files of finished shards."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("0*")
        if path.is_file() and "plan" not in path.parts
    }


def _tries(run: BulkRun) -> list[int]:
    with run.connection.runs(run.id) as runs:
        return [shard.tries for shard in runs.shards(run.id)]


@pytest.mark.parametrize("format", BulkFormat)
def test_finished_shards_stay_and_new_ones_stand_beside_them(
    start: StartWorker, producer: Client, tmp_path: Path, format: BulkFormat
) -> None:
    start(**FAST)
    folder = tmp_path / "data"
    first = producer.bulk(PROMPTS, folder, shard_size=10, format=format)
    assert first.wait(300).images == 25
    until(lambda: not (folder / "parts").exists())
    before = _digests(folder)
    run = producer.bulk([*PROMPTS, *MORE], folder, append=True, shard_size=10, format=format)
    status = run.wait(300)
    assert (status.state, status.images, status.failed_images) == (State.SUCCEEDED, 37, 0)
    assert run.id != first.id
    until(lambda: not (folder / "parts").exists())
    after = _digests(folder)
    assert before == {name: after[name] for name in before}
    assert {name[:5] for name in after} == {f"{n:05d}" for n in range(5)}
    report = run.verify(sample=37)
    assert (report.clean, report.present, report.max_difference) == (True, 37, 0)
    stats = json.loads((folder / "stats.json").read_text())
    assert (stats["shards"], stats["samples"]) == (5, 37)
    again = producer.bulk([*PROMPTS, *MORE], folder, shard_size=10, format=format)
    assert (again.id, again.wait(300).images) == (run.id, 37)


def test_shards_of_both_parts_can_be_repaired(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start(**FAST)
    folder = tmp_path / "data"
    producer.bulk(PROMPTS, folder, shard_size=10).wait(300)
    run = producer.bulk([*PROMPTS, *MORE], folder, shard_size=10, append=True)
    run.wait(300)
    before = _digests(folder)
    for name in ("00002.tar", "00004.tar"):
        (folder / name).write_bytes(b"damaged")
    assert run.repair(run.verify()) == 2
    assert run.wait(300).images == 37
    until(lambda: not (folder / "parts").exists())
    assert run.verify().clean
    assert _digests(folder) == before


def test_rows_are_appended_to_a_run_that_is_not_finished(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=0.2,capacity=8")
    folder = tmp_path / "data"
    first = producer.bulk(PROMPTS, folder, shard_size=5)
    until(lambda: first.status().shards_by_state[State.SUCCEEDED] > 0)
    run = producer.bulk([*PROMPTS, *MORE], folder, shard_size=5, append=True)
    assert first.status().state is State.CANCELLED
    status = run.wait(300)
    assert (status.state, status.images, status.failed_images) == (State.SUCCEEDED, 37, 0)
    assert run.verify().clean
    assert first.status().failures_by_reason == {}


def test_appending_after_redis_lost_everything_sends_only_what_is_missing(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start(**FAST)
    folder = tmp_path / "data"
    first = producer.bulk(PROMPTS, folder, shard_size=10)
    first.wait(300)
    producer.connection.redis.flushall()
    start(**FAST)
    until(producer.offers)
    run = producer.bulk([*PROMPTS, *MORE], folder, shard_size=10, append=True)
    assert run.wait(300).images == 37
    assert _tries(run)[3:] == [1, 1]
    assert run.verify().clean


def test_changed_rows_change_nothing(start: StartWorker, producer: Client, tmp_path: Path) -> None:
    start(**FAST)
    folder = tmp_path / "data"
    first = producer.bulk(PROMPTS, folder, shard_size=10)
    first.wait(300)
    rows = [*PROMPTS[:12], "edited", *PROMPTS[13:], *MORE]
    with pytest.raises(PlanConflict, match="row 12 is 'edited' now, and was"):
        producer.bulk(rows, folder, shard_size=10, append=True)
    assert first.status().state is State.SUCCEEDED
    assert first.verify().clean
    dry = producer.dry_run_bulk([*PROMPTS, *MORE], folder, shard_size=10, append=True)
    assert (dry.images, dry.new_images, dry.is_planned) == (37, 12, False)
    assert first.verify().clean
