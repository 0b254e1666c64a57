"""Start bulk runs from the command line and from Python, with real workers."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.commands.cli import main
from imagefleet.shared.bulk.file_layout import checkpoints_prefix
from imagefleet.shared.bulk.plan import derive_seed
from imagefleet.shared.errors import (
    InvalidRequest,
    PlanConflict,
    ResultTimeout,
    StorageDenied,
    UnknownRun,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support import forked
from tests.support.processes import ROOT, StartWorker, until, worker_processes
from tests.support.s3 import signed_s3
from tests.support.settings import worker_settings

NAMESPACE = "bulkcli"
PROMPTS = [f"prompt {n}" for n in range(30)]
NO_WORKER = "no worker is alive; unfinished work waits until one is ready"

Bulk = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def connection_options(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """Start a fleet of one worker, and return the options that connect to it."""
    folder = tmp_path_factory.mktemp("fleet")
    settings = worker_settings(
        redis_server.url, folder, IMAGEFLEET_NAMESPACE=NAMESPACE, IMAGEFLEET_MODEL="fake"
    )
    with worker_processes(folder, settings) as start:
        start()
        with connect(redis_server.url) as redis:
            until(lambda: redis.exists(f"{NAMESPACE}:catalogue"))
        yield ["--redis-url", redis_server.url, "--namespace", NAMESPACE]


@pytest.fixture
def fleet(connection_options: list[str]) -> Iterator[Client]:
    with closing(Client(connection_options[1], namespace=NAMESPACE)) as client:
        yield client


@pytest.fixture
def bulk(connection_options: list[str]) -> Bulk:
    def bulk(command: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        options = (*connection_options, *map(str, arguments))
        return forked.run("-m", "imagefleet.producer", "bulk", command, *options)

    return bulk


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    return path


@pytest.fixture(scope="module")
def finished_run(
    connection_options: list[str], tmp_path_factory: pytest.TempPathFactory
) -> BulkRun:
    """Make a finished dataset. Tests that damage files use `copied`."""
    with closing(Client(connection_options[1], namespace=NAMESPACE)) as client:
        folder = tmp_path_factory.mktemp("made")
        run = client.bulk(PROMPTS, folder, shard_size=10, num_images_per_prompt=2)
        assert run.wait(300).state is State.SUCCEEDED
    until(lambda: not (folder / "parts").exists())  # the worker deletes checkpoints at last
    return run


@pytest.fixture
def copied(finished_run: BulkRun, fleet: Client, tmp_path: Path) -> tuple[BulkRun, Path]:
    """Copy the finished dataset to a destination that Redis has no record of."""
    folder = tmp_path / "copy"
    shutil.copytree(_folder(finished_run), folder)
    return fleet.find_bulk(str(folder)), folder


def _folder(run: BulkRun) -> Path:
    return Path(run.destination.removeprefix("file://"))


def test_a_run_without_a_destination_says_what_is_missing() -> None:
    done = CliRunner().invoke(main, ["bulk", "run", "prompts.txt"])
    assert done.exit_code == 2
    assert "give one INPUT or more, and then the DESTINATION" in done.stderr


def test_the_format_of_images_in_the_place_of_that_of_shards_is_explained() -> None:
    done = CliRunner().invoke(main, ["bulk", "run", "a.txt", "data", "--format", "webp"])
    assert done.exit_code == 2
    assert "The format of the images is --image-format webp." in " ".join(done.stderr.split())


def test_a_file_of_prompts_becomes_a_verified_dataset(
    bulk: Bulk, prompts: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    prompts.write_text("\n".join([*PROMPTS, "", "x" * 4_001, ""]))
    completed = bulk("run", prompts, data, "--shard-size", 10)
    assert completed.returncode == 3, completed.stderr
    assert "30 of 30 images" in completed.stdout
    assert completed.stdout.splitlines()[-1] == "The dataset lacks 1 rejected row."
    again = bulk("wait", data, "--json")
    assert (again.returncode, json.loads(again.stdout)["state"]) == (3, "succeeded")
    assert again.stderr.splitlines()[-1] == "The dataset lacks 1 rejected row."
    assert "rejected 1 row;" in completed.stderr
    assert "row 31: prompt='xxx" in completed.stderr
    until(lambda: not (data / "parts").exists())
    checked = bulk("verify", data, "--sample", 1)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.splitlines()[0] == (
        "as planned: 30 of 30 images in 3 shards, 0 failed; 1 row with 1 image generated again, "
        "with a difference of at most 0 of 255 levels"
    )
    cancelled = bulk("cancel", data)
    assert cancelled.returncode == 1
    assert cancelled.stdout == f"{data}  succeeded already, so nothing was cancelled\n"
    assert json.loads((data / "stats.json").read_text())["samples"] == 30
    assert (data / "README.md").read_text().startswith("---\npretty_name:")


def test_a_run_whose_dataset_lacks_a_failed_image_ends_with_a_code_of_its_own(
    bulk: Bulk, tmp_path: Path
) -> None:
    table, data = tmp_path / "rows.csv", tmp_path / "data"
    table.write_text("prompt,image\na star,http://127.0.0.1:1/a.png\na ring,\n")
    done = bulk("run", table, data, "--num-images-per-prompt", 2)
    assert done.returncode == 3, done.stderr
    assert "2 of 4 images, 2 failed" in done.stdout
    assert "row 0: invalid_input: image: 127.0.0.1: loopback" in done.stderr
    assert done.stdout.splitlines()[-1] == "The dataset lacks 2 failed images."


def test_a_run_with_too_many_rejected_rows_is_refused_and_leaves_no_plan(
    bulk: Bulk, prompts: Path, tmp_path: Path
) -> None:
    prompts.write_text("\n".join(["good"] * 97 + ["x" * 4_001] * 3))
    data = tmp_path / "data"
    for options, shown in (
        (["--strict"], "max_rejected='0'"),
        (["--max-rejected", "2"], "max_rejected='2'"),
        (["--max-rejected", "2.9%"], "max_rejected='2.9%'"),
    ):
        refused = bulk("run", prompts, data, *options)
        assert refused.returncode == 1
        sentence = f"{shown}: 3 of 100 rows are rejected; --dry-run lists them"
        assert sentence in refused.stderr
        assert not (data / "plan" / "plan.json").exists()
        tried = bulk("run", prompts, data, "--dry-run", *options)
        assert tried.returncode == 1
        assert "row 97: prompt='xxx" in tried.stderr
        assert tried.stderr.splitlines()[-1] == f"The run would be refused: {sentence}"
    for options in (["--max-rejected", "3"], ["--max-rejected", "3%", "--no-wait"]):
        assert bulk("run", prompts, data, *options).returncode == 3
    wrong = bulk("run", prompts, data, "--max-rejected", "many")
    assert (wrong.returncode, "max_rejected='many': must be a number of rows" in wrong.stderr) == (
        1,
        True,
    )
    assert bulk("run", prompts, data, "--strict", "--max-rejected", "1").returncode == 2


def test_the_same_command_returns_the_finished_run_and_another_plan_is_refused(
    bulk: Bulk, finished_run: BulkRun, fleet: Client
) -> None:
    again = fleet.bulk(PROMPTS, finished_run.destination, shard_size=10, num_images_per_prompt=2)
    assert again == finished_run
    assert again.status().state is State.SUCCEEDED
    with pytest.raises(PlanConflict, match="holds another plan"):
        fleet.bulk(PROMPTS, finished_run.destination, shard_size=11, num_images_per_prompt=2)


def _quietly(command: list[str]) -> "subprocess.Popen[bytes]":
    null = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdout=null, stderr=null)


def test_every_shard_is_made_once_by_two_commands_at_once_after_a_killed_one(
    start: StartWorker, producer: Client, prompts: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    data = tmp_path / "data"
    connection_options = ["--redis-url", settings["IMAGEFLEET_REDIS_URL"], "--namespace"]
    command = [sys.executable, "-m", "imagefleet.producer", "bulk", "run", *connection_options]
    command += [settings["IMAGEFLEET_NAMESPACE"], str(prompts), str(data), "--shard-size", "5"]
    killed = _quietly(command)
    until(lambda: (data / "plan" / "plan.json").exists())
    killed.kill()
    killed.wait()
    both = [_quietly(command) for _ in range(2)]
    start()
    assert [process.wait(300) for process in both] == [0, 0]
    run = producer.find_bulk(str(data))
    with producer.connection.runs(run.id) as runs:
        assert [shard.tries for shard in runs.shards(run.id)] == [1] * 6
    assert run.verify().clean


def test_ctrl_c_ends_the_view_and_not_the_run(
    start: StartWorker, producer: Client, prompts: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    connection_options = ["--redis-url", settings["IMAGEFLEET_REDIS_URL"]]
    connection_options += ["--namespace", settings["IMAGEFLEET_NAMESPACE"]]
    command = [
        sys.executable,
        "-m",
        "imagefleet.producer",
        "bulk",
        "run",
        *connection_options,
        str(prompts),
    ]
    watching = subprocess.Popen(
        [*command, str(tmp_path / "data")], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert watching.stderr is not None
    assert watching.stderr.readline() == f"{NO_WORKER}\n"  # the progress view starts now
    with producer.connection.runs_by_lane() as runs:
        [run_id] = runs.ids()
        assert runs.of(run_id).shards(run_id)
    watching.send_signal(signal.SIGINT)
    _, completed = watching.communicate(timeout=900)
    assert (watching.returncode, "The run continues" in completed) == (130, True)
    run = producer.find_bulk(run_id)
    assert not run.status().done
    with pytest.raises(ResultTimeout):
        run.wait(0)
    start()
    assert run.wait(300).state is State.SUCCEEDED


def test_commands_warn_if_no_worker_is_alive(
    bulk: Bulk,
    start: StartWorker,
    producer: Client,
    namespace: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data")
    here = ("--namespace", namespace)  # a namespace without workers
    waiting = bulk("wait", *here, "--timeout", 0, run.id)
    assert (waiting.returncode, waiting.stderr.count(NO_WORKER)) == (1, 1)
    for of in ([run.id], []):
        assert bulk("status", *here, *of).stderr == f"{NO_WORKER}\n"
    with pytest.raises(ResultTimeout):
        run.wait(0)
    assert caplog.messages == [NO_WORKER]
    caplog.clear()
    start(IMAGEFLEET_LEASE_S="600")  # it counts as alive also while it is suspended
    until(producer.workers)
    run.wait(300)
    assert not caplog.messages
    assert bulk("wait", *here, run.id).stderr == bulk("status", *here).stderr == ""


def test_failed_prompts_are_listed_and_do_not_stop_the_run(
    bulk: Bulk, fleet: Client, tmp_path: Path
) -> None:
    run = fleet.bulk([*PROMPTS, "please [fail] here"], tmp_path, shard_size=40)
    assert run.wait(300).failures_by_reason == {"device_error": 1}
    assert [failure.row for failure in run.failures()] == [30]
    [failure] = run.failures()
    left = checkpoints_prefix("00000", run.plan.shards[0].sha256) + "000000030.failed.jsonl"
    failure = failure.model_copy(update={"message": "left by a worker that died"})
    run.store.put(left, failure.model_dump_json().encode(), "application/jsonl")
    assert run.verify().clean
    assert "1 shard sent again" in bulk("retry-failed", run.id).stdout
    assert run.wait(300).images == 30
    assert run.verify().failed == 1
    assert [each.message for each in run.failures()] != [failure.message]
    until(lambda: not list(run.store.list("parts/")))


def test_a_run_fails_after_more_failures_than_allowed(
    bulk: Bulk, prompts: Path, tmp_path: Path
) -> None:
    prompts.write_text("good\nplease [fail] here\n")
    completed = bulk("run", prompts, tmp_path / "data", "--max-failures", 0)
    assert completed.returncode == 1
    assert "failed" in completed.stdout


def test_the_same_command_resumes_a_cancelled_run(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=5)
    assert run.cancel() is State.CANCELLED
    assert run.wait(1).state is State.CANCELLED
    again = producer.bulk(PROMPTS, tmp_path / "data", shard_size=5)
    start()
    assert again.wait(300).state is State.SUCCEEDED
    assert again.verify().clean


def test_records_that_redis_lost_are_restored_from_the_destination(
    copied: tuple[BulkRun, Path], fleet: Client
) -> None:
    run, folder = copied
    with pytest.raises(UnknownRun):
        run.status()
    (folder / "00003.stats.json").unlink()
    run = fleet.bulk(PROMPTS, folder, shard_size=10, num_images_per_prompt=2)
    assert run.wait(300).state is State.SUCCEEDED
    with fleet.connection.runs(run.id) as runs:
        assert [shard.tries for shard in runs.shards(run.id)] == [0, 0, 0, 1, 0, 0]


def test_the_same_command_fills_an_emptied_destination_again(
    fleet: Client, connection_options: list[str], tmp_path: Path
) -> None:
    with connect(connection_options[1]) as redis:
        for _ in range(2):
            run = fleet.bulk(PROMPTS, tmp_path / "data", shard_size=10)
            assert run.wait(300).state is State.SUCCEEDED
            assert run.verify().clean
            until(lambda: not redis.keys(f"{NAMESPACE}:claims:*"))  # the worker writes no more
            assert (tmp_path / "data" / "stats.json").exists()
            shutil.rmtree(tmp_path / "data")


@pytest.mark.parametrize(
    "name", ["00001.stats.json", "plan/plan.json", "plan/00001.jsonl", "stats.json"]
)
def test_the_same_command_writes_deleted_files_of_the_plan_and_markers_again(
    copied: tuple[BulkRun, Path], fleet: Client, name: str
) -> None:
    """With `stats.json` it writes the card and its contact sheet, too."""
    _, folder = copied
    names = [name, "README.md", "contact-sheet.png"] if name == "stats.json" else [name]
    for each in names:
        (folder / each).unlink()
    run = fleet.bulk(PROMPTS, folder, shard_size=10, num_images_per_prompt=2)
    run.wait(300)
    assert run.verify().clean
    until(lambda: all((folder / each).exists() for each in (*names, "stats.json")))


@pytest.mark.parametrize("name", ["00001.tar", "00001.jsonl", "README.md", "contact-sheet.png"])
def test_the_same_command_does_not_look_at_other_files(
    copied: tuple[BulkRun, Path], fleet: Client, name: str
) -> None:
    _, folder = copied
    (folder / name).unlink()
    run = fleet.bulk(PROMPTS, folder, shard_size=10, num_images_per_prompt=2)
    assert run.status().state is State.SUCCEEDED
    assert not (folder / name).exists()


def test_a_cancelled_run_with_all_shards_finished_succeeds_when_run_again(
    fleet: Client, connection_options: list[str], tmp_path: Path
) -> None:
    run = fleet.bulk(PROMPTS, tmp_path, shard_size=10)
    run.wait(300)
    with connect(connection_options[1]) as redis:
        redis.hset(f"{NAMESPACE}:bulk:{run.id}", "state", "cancelled")
    assert fleet.bulk(PROMPTS, tmp_path, shard_size=10).status().state is State.SUCCEEDED


def _cut(folder: Path) -> None:
    path = folder / "00001.tar"
    path.write_bytes(path.read_bytes()[:2_000])


def _swap(folder: Path) -> None:
    """Replace a shard by another one."""
    for suffix in ("tar", "jsonl"):
        shutil.copy(folder / f"00002.{suffix}", folder / f"00001.{suffix}")


def _flip(folder: Path) -> None:
    path = folder / "00001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"prompt 5", b"prompt 6"))


def _remove(*names: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def _replace_by_fifo(folder: Path) -> None:
    (folder / "00001.tar").unlink()
    os.mkfifo(folder / "00001.tar")


@pytest.mark.parametrize(
    ("damage_files", "what"),
    [
        (_cut, {"changed file", "damaged file"}),
        (_swap, {"changed file", "missing samples", "unplanned samples"}),
        (_flip, {"changed file", "wrong prompt or seed"}),
        (_remove("00001.stats.json"), {"unfinished"}),
        (_remove("00001.tar"), {"missing file"}),
        (_replace_by_fifo, {"missing file"}),
        (_remove("00001.tar", "00001.jsonl"), {"missing file"}),
    ],
)
def test_verify_finds_damage_and_repair_restores_the_same_bytes(
    copied: tuple[BulkRun, Path],
    finished_run: BulkRun,
    damage_files: Callable[[Path], None],
    what: set[str],
) -> None:
    run, folder = copied
    assert run.verify().clean
    damage_files(folder)
    report = run.verify()
    assert {problem.what for problem in report.problems} == what
    assert {problem.shard for problem in report.problems} == {"00001"}
    changed = [problem.detail for problem in report.problems if problem.what == "changed file"]
    assert all("SHA-256 differs" in detail for detail in changed)
    assert run.repair(report) == 1
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean
    for path in folder.glob("0*"):
        assert path.read_bytes() == (_folder(finished_run) / path.name).read_bytes(), path.name


def test_unplanned_files_are_reported_and_not_deleted(
    bulk: Bulk, copied: tuple[BulkRun, Path]
) -> None:
    run, folder = copied
    shutil.copy(folder / "00001.tar", folder / "00077.tar")
    shutil.copy(folder / "00001.tar", folder / "00001.bak.tar")
    (folder / "notes.txt").write_text("mine")
    report = run.verify()
    strays = {(problem.what, problem.detail) for problem in report.problems}
    assert strays == {("unplanned file", "00077.tar"), ("unplanned file", "00001.bak.tar")}
    completed = bulk("verify", folder, "--repair")
    assert (
        completed.returncode,
        "2 unplanned files: not in the plan" in completed.stdout,
    ) == (1, True)
    assert "0 shards sent again" in completed.stdout
    (folder / "00077.tar").unlink()
    (folder / "00001.bak.tar").unlink()
    assert bulk("verify", folder).returncode == 0


def test_a_sample_is_of_different_rows_and_says_how_many_images_they_have(
    bulk: Bulk, finished_run: BulkRun
) -> None:
    report = finished_run.verify(sample=100)
    assert (report.clean, report.regenerated_rows, report.regenerated) == (True, 30, 60)
    checked = bulk("verify", finished_run.id, "--sample", 2)
    assert "; 2 rows with 4 images generated again, " in checked.stdout


def test_the_first_line_about_a_damaged_dataset_says_that_it_is_not_as_planned(
    bulk: Bulk, copied: tuple[BulkRun, Path]
) -> None:
    _, folder = copied
    _flip(folder)
    checked = bulk("verify", folder)
    head, *_ = checked.stdout.splitlines()
    sentence = "not as planned, 2 problems: 60 of 60 images in 6 shards, 0 failed"
    assert (checked.returncode, head) == (1, sentence)
    repaired = bulk("verify", folder, "--repair", "--json")
    assert (repaired.returncode, json.loads(repaired.stdout)["shards_sent_again"]) == (0, 1)


def test_verify_counts_only_existing_images_as_present(fleet: Client, tmp_path: Path) -> None:
    run = fleet.bulk(PROMPTS, tmp_path, shard_size=30, format="files")
    run.wait(300)
    assert (run.verify().clean, run.verify().present) == (True, 30)
    for path in sorted((tmp_path / "00000").glob("*.png"))[:7]:
        path.unlink()
    report = run.verify()
    assert report.present == 23
    assert {problem.what for problem in report.problems} == {"missing file", "missing samples"}


def test_a_changed_row_file_is_reported_and_not_repaired(copied: tuple[BulkRun, Path]) -> None:
    run, folder = copied
    path = folder / "plan" / "00001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"prompt 5", b"prompt 6"))
    report = run.verify()
    assert [problem.what for problem in report.problems] == ["damaged plan"]
    assert run.repair(report) == 0


def test_generating_a_row_again_finds_an_image_of_another_seed(
    fleet: Client, tmp_path: Path
) -> None:
    """All digests are right, but the images belong to another seed."""
    runs = [fleet.bulk(["a"], tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    for run in runs:
        run.wait(300)
    for path in (tmp_path / "1").glob("0*"):
        if path.suffix != ".json":
            shutil.copy(path, tmp_path / "2")
    assert [p.what for p in runs[1].verify().problems] == ["changed file"] * 2 + [
        "wrong prompt or seed"
    ]
    stats = json.loads((tmp_path / "1" / "00000.stats.json").read_text())
    stats["plan_sha256"] = runs[1].plan.shards[0].sha256
    lines = tmp_path / "2" / "00000.jsonl"
    seeds = [derive_seed(seed, 0) for seed in (1, 2)]
    lines.write_text(lines.read_text().replace(f'"seed":{seeds[0]}', f'"seed":{seeds[1]}'))
    stats["files"][1]["sha256"] = hashlib.sha256(lines.read_bytes()).hexdigest()
    (tmp_path / "2" / "00000.stats.json").write_text(json.dumps(stats))
    assert runs[1].verify().clean
    assert [p.what for p in runs[1].verify(sample=1).problems] == ["different image"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"shard_size": 0}, "shard_size"),
        ({"num_images_per_prompt": 65}, "num_images_per_prompt"),
        ({"guidance_scale": "much"}, "guidance_scale"),
        ({"max_failures": -1}, "max_failures"),
        ({"max_failures": 1.0}, "max_failures"),
        ({"priority": 10}, "priority"),
        ({"priority": 3.0}, "priority"),
        ({"limit": "5"}, "limit"),
        ({"format": "zip"}, "format"),
        ({"image_format": "bmp"}, "image_format"),
        ({"height": 72, "width": 64}, "height x width"),
        ({"promt": "a"}, "promt"),
        ({"destination": "memory://"}, "destination"),
        ({"destination": "ftp://somewhere"}, "destination"),
        ({"destination": "s3//bucket"}, "destination"),
        ({"destination": "s3:/bucket"}, "destination"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    fleet: Client, tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fleet.bulk(["a"], **{"destination": str(tmp_path / "data"), **options})
    assert refused.value.field == field
    assert not (tmp_path / "data").exists()


def test_a_destination_that_cannot_be_written_is_reported(fleet: Client, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file stands here")
    with pytest.raises(StorageDenied):
        fleet.bulk(["a"], tmp_path / "data")


def test_commands_report_a_name_that_is_no_run(bulk: Bulk, tmp_path: Path) -> None:
    for command in ("status", "wait", "cancel", "verify", "retry-failed"):
        completed = bulk(command, tmp_path / "nothing")
        assert (completed.returncode, "neither a run in this Redis" in completed.stderr) == (
            1,
            True,
        )


def test_all_runs_are_listed_as_json(bulk: Bulk, finished_run: BulkRun) -> None:
    lines = bulk("status", "--json").stdout.splitlines()
    assert finished_run.id in {json.loads(line)["id"] for line in lines}


def test_each_run_has_one_line_without_an_id(bulk: Bulk, finished_run: BulkRun) -> None:
    lines = bulk("status").stdout.splitlines()
    [line] = [line for line in lines if line.startswith(finished_run.id)]
    assert "succeeded  60 of 60 images" in line
    assert line.endswith(finished_run.destination)
    assert len(bulk("status", finished_run.id).stdout.splitlines()) > 3


def test_a_dry_run_estimates_time_and_bytes_by_what_the_workers_report(
    finished_run: BulkRun, fleet: Client, tmp_path: Path
) -> None:
    def known() -> bool:
        return fleet.dry_run_bulk(PROMPTS, tmp_path / "data").seconds is not None

    until(known)  # the worker reports with its heartbeats
    one = fleet.dry_run_bulk(PROMPTS, tmp_path / "data", num_inference_steps=10)
    two = fleet.dry_run_bulk(PROMPTS * 2, tmp_path / "data", num_inference_steps=20)
    assert one.seconds is not None
    assert two.seconds == pytest.approx(4 * one.seconds)
    assert one.size is not None
    assert 0 < one.size < (one.size_limit or 0)
    assert one.workers == 1
    small = fleet.dry_run_bulk(PROMPTS, tmp_path / "data", image_format="webp")
    assert small.size is None  # no worker made such a file
    again = fleet.dry_run_bulk(
        PROMPTS, finished_run.destination, shard_size=10, num_images_per_prompt=2
    )
    assert again.is_planned
    with pytest.raises(PlanConflict):
        fleet.dry_run_bulk(PROMPTS, finished_run.destination)


def test_a_plan_is_written_to_s3_and_missing_rights_are_reported(
    producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with signed_s3() as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        run = producer.bulk(PROMPTS, s3.url("data"), shard_size=10)
        assert producer.find_bulk(run.id) == producer.find_bulk(s3.url("data")) == run
        assert {shard.name for shard in run.plan.shards} == {"00000", "00001", "00002"}
        assert [problem.what for problem in run.verify().problems] == ["unfinished"] * 3
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(StorageDenied, match="secret key is wrong"):
            producer.bulk(PROMPTS, s3.url("elsewhere"))
