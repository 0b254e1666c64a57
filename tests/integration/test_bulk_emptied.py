"""A destination is emptied, or loses its plan, and holds another dataset of the same rows then."""

import json
import shutil
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from imagefleet import Client
from imagefleet.producer.commands.cli import main
from imagefleet.shared.bulk.file_layout import PLAN, RUN_STATS
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import PlanConflict, PlanDamaged
from imagefleet.shared.jobs.model import State
from tests.support.processes import StartWorker, until

PROMPTS = [f"prompt {n}" for n in range(30)]
SLOW = {
    "IMAGEFLEET_MODEL": "fake:seconds=0.5,capacity=8",
    "IMAGEFLEET_BULK_CHECKPOINT_S": "3600",  # the test deletes the folder of checkpoints
    "IMAGEFLEET_LEASE_S": "600",
}


def _steps(folder: Path) -> list[int]:
    lines = [line for path in folder.glob("0*.jsonl") for line in path.read_bytes().splitlines()]
    return [json.loads(line)["num_inference_steps"] for line in lines]


def _forget_plan(folder: Path) -> None:
    """Delete what keeps another dataset out of a folder."""
    for name in (PLAN, RUN_STATS):
        (folder / name).unlink()


def test_a_shard_that_runs_while_its_folder_is_emptied_is_in_no_other_dataset(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    slow = start(**SLOW)
    until(producer.offers)
    first = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10, num_inference_steps=4)
    until(lambda: first.status().shards_by_state[State.RUNNING])
    slow.freeze()
    shutil.rmtree(tmp_path / "data")
    start(IMAGEFLEET_LEASE_S="600")
    second = producer.bulk(PROMPTS, tmp_path / "data", shard_size=10, num_inference_steps=3)
    assert second.wait(300).state is State.SUCCEEDED
    slow.thaw()
    status = first.wait(300)
    assert _steps(tmp_path / "data") == [3] * 30
    assert second.verify().clean
    assert (status.state, set(status.failures_by_reason)) == (State.FAILED, {"plan_damaged"})


def test_the_same_command_makes_a_dataset_again_that_was_deleted_while_it_was_made(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start(**SLOW)
    until(producer.offers)
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30)
    until(lambda: run.status().shards_by_state[State.RUNNING])
    shutil.rmtree(tmp_path / "data")
    assert set(run.wait(300).failures_by_reason) == {"plan_damaged"}
    assert not (tmp_path / "data").exists()  # it left no checkpoint either
    assert producer.bulk(PROMPTS, tmp_path / "data", shard_size=30).id == run.id
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean


def test_the_id_of_a_run_whose_destination_holds_another_one_is_only_cancelled(
    producer: Client, settings: dict[str, str], tmp_path: Path
) -> None:
    first = producer.bulk(PROMPTS, tmp_path / "data", seed=1)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(PlanDamaged, match=f"^run {first.id}: .*plan/plan.json is missing"):
        producer.find_bulk(first.id)
    second = producer.bulk(PROMPTS, tmp_path / "data", seed=2)
    with pytest.raises(PlanConflict, match=f"^run {first.id}: .* plan of another run now"):
        producer.find_bulk(first.id)
    cancelled = CliRunner().invoke(main, ["bulk", "cancel", first.id, "--json"], env=settings)
    assert cancelled.exit_code == 0, cancelled.output
    assert json.loads(cancelled.stdout) == {"run": first.id, "state": "cancelled"}
    assert (first.status().state, second.status().state) == (State.CANCELLED, State.RUNNING)
    cancelled = CliRunner().invoke(main, ["bulk", "cancel", str(tmp_path / "data")], env=settings)
    assert cancelled.exit_code == 0, cancelled.output
    assert producer.find_bulk(second.id).status().state is State.CANCELLED


def test_files_of_another_format_do_not_count_as_finished(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    worker = start(IMAGEFLEET_LEASE_S="600")
    producer.bulk(PROMPTS, tmp_path / "data", shard_size=30).wait(300)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    worker.kill()
    _forget_plan(tmp_path / "data")
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30, format=BulkFormat.PARQUET)
    [problem] = run.verify().problems
    assert (problem.what, problem.samples) == ("unfinished", 30)
    assert problem.detail == "00000.stats.json belongs to another format than parquet"
    assert not run.status().done
    start()
    assert run.wait(300).state is State.SUCCEEDED
    report = run.verify()
    assert [(each.what, each.detail) for each in report.problems] == [
        ("unplanned file", "00000.tar")
    ]
    assert report.present == 30


@pytest.mark.parametrize(
    "options", [{"num_inference_steps": 3}, {"guidance_scale": 2.0}, {"negative_prompt": "blurred"}]
)
def test_verify_finds_images_of_other_parameters_and_repair_replaces_them(
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    options: dict[str, object],
) -> None:
    """A commit marker does not name the parameters of its run."""
    start(IMAGEFLEET_LEASE_S="600")
    producer.bulk(PROMPTS, tmp_path / "data", shard_size=30).wait(300)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    _forget_plan(tmp_path / "data")
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=30, **options)
    assert run.wait(300).state is State.SUCCEEDED
    report = run.verify()
    assert [(each.what, each.samples) for each in report.problems] == [("wrong parameters", 30)]
    assert run.repair(report) == 1
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean
