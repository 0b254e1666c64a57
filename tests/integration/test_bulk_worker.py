"""Real workers with the fake engine make complete datasets with equal bytes, also if they die."""

import hashlib
import io
import json
import platform
import re
from functools import partial
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner
from PIL import Image

from imagefleet import Client
from imagefleet.producer.commands.cli import main
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import InvalidRequest, StorageDenied
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.redis_keys import workers_key
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.integration.conftest import MakeClaims
from tests.support.datasets import Dataset, planned_dataset, read_tar
from tests.support.files import files_below
from tests.support.processes import StartWorker, until, worker_processes
from tests.support.settings import worker_settings

PROMPTS = [f"prompt {n}" for n in range(60)]
SLOW = {"IMAGEFLEET_MODEL": "fake:seconds=0.05,capacity=8", "IMAGEFLEET_BULK_CHECKPOINT_S": "0.2"}
"""A worker with some batches per second and a checkpoint every 0.2 s, so tests can interrupt it."""
SLOWER = {**SLOW, "IMAGEFLEET_MODEL": "fake:seconds=0.4,capacity=8"}
"""The same, but 60 prompts take at least ten seconds."""


def _wait(dataset: Dataset, timeout_s: float = 900) -> State:
    until(dataset.is_finished, timeout_s)
    return dataset.runs.get(dataset.run.id).state


def _generated(dataset: Dataset) -> int:
    return dataset.runs.get(dataset.run.id).images


def _generated_more_than(dataset: Dataset, count: int) -> bool:
    return _generated(dataset) > count


def _is_complete(dataset: Dataset) -> bool:
    samples = dataset.samples()
    rows = dataset.plan.parameters.num_images_per_prompt or 1
    expected = {f"{n:09d}-{i:02d}" for n in range(dataset.plan.rows) for i in range(rows)}
    assert samples.keys() == expected
    assert set(map(tuple, samples.values())) == {("png", "json", "txt")}
    until(lambda: not files_below(dataset.checkpoints))
    return True


@pytest.fixture(scope="module")
def undisturbed(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """Return the files of an undisturbed run."""
    folder, namespace = tmp_path_factory.mktemp("undisturbed"), "undisturbed"
    with connect(redis_server.url) as client:
        dataset = planned_dataset(folder / "data", client, namespace, PROMPTS)
        dataset.send()
        settings = worker_settings(
            redis_server.url, folder, IMAGEFLEET_NAMESPACE=namespace, IMAGEFLEET_MODEL="fake"
        )
        with worker_processes(folder, settings) as start:
            start()
            assert _wait(dataset) is State.SUCCEEDED
            until(lambda: not files_below(dataset.checkpoints))
    return dataset.files()


def test_a_planned_dataset_is_written_as_files(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS, images=2)
    dataset.send()
    start()
    assert _wait(dataset) is State.SUCCEEDED
    assert _is_complete(dataset)
    status = dataset.runs.get(dataset.run.id)
    assert (status.images, status.failed_images) == (120, 0)
    assert list(status.images_by_worker.values()) == [120]
    stats, files = dataset.stats(0), dataset.files()
    assert stats["samples"] == 20
    assert [each["key"] for each in stats["files"]] == ["00000.tar", "00000.jsonl"]
    for each in stats["files"]:
        assert hashlib.sha256(files[each["key"]]).hexdigest() == each["sha256"]
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    assert not client.keys(f"{namespace}.bulk*")


def test_a_sample_has_an_image_its_parameters_and_its_prompt(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, ["two cats", "a dog"], steps=3)
    dataset.send()
    start()
    assert _wait(dataset) is State.SUCCEEDED
    files = read_tar(dataset.files()["00000.tar"])
    assert list(files) == [
        f"{key}.{suffix}"
        for key in ("000000000-00", "000000001-00")
        for suffix in ("png", "json", "txt")
    ]
    document = json.loads(files["000000001-00.json"])
    image = files["000000001-00.png"]
    assert files["000000001-00.txt"] == b"a dog"
    assert Image.open(io.BytesIO(image)).size == (64, 64)
    assert document["sha256"] == hashlib.sha256(image).hexdigest()
    wanted = {"prompt": "a dog", "seed": 1, "row": 1, "num_inference_steps": 3, "model": "fake"}
    assert wanted.items() <= document.items()
    assert dataset.documents(0) == [json.loads(files[f"{k}.json"]) for k in _keys(files)]


def _keys(files: dict[str, bytes]) -> list[str]:
    return [name.removesuffix(".json") for name in files if name.endswith(".json")]


def test_a_run_with_killed_workers_has_the_same_bytes(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    dataset.send()
    generated = 0
    for _ in range(3):
        worker = start(**SLOWER)
        until(partial(_generated_more_than, dataset, generated))
        worker.kill()
        generated = _generated(dataset)
    assert 0 < generated < len(PROMPTS)
    start()
    assert _wait(dataset) is State.SUCCEEDED
    assert _is_complete(dataset)
    until(lambda: not files_below(dataset.checkpoints))
    assert dataset.files() == undisturbed


def test_samples_count_before_their_checkpoint_and_lost_samples_count_once(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    prompts = [f"{n}" for n in range(400)]
    dataset = planned_dataset(tmp_path / "data", client, namespace, prompts, shard_size=400)
    dataset.send()
    worker = start(**{**SLOW, "IMAGEFLEET_BULK_CHECKPOINT_S": "3600"})
    until(lambda: _generated(dataset) > 0)
    worker.kill()
    assert not files_below(dataset.checkpoints)
    start()
    assert _wait(dataset) is State.SUCCEEDED
    status = dataset.runs.get(dataset.run.id)
    assert (status.images, len(dataset.samples())) == (400, 400)
    assert sum(status.images_by_worker.values()) > 400


def test_a_draining_worker_requeues_its_shards_and_stores_checkpoints(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    dataset.send()
    first = start(**SLOWER)
    first.await_log("ready after")
    until(lambda: client.keys(f"{namespace}:claims:*"))
    assert first.terminate() == 0
    assert not client.keys(f"{namespace}:claims:*")
    assert dataset.runs.get(dataset.run.id).shards_by_state[State.RUNNING] == 0
    assert not dataset.is_finished()
    start()
    assert _wait(dataset) is State.SUCCEEDED
    assert _is_complete(dataset)
    until(lambda: not files_below(dataset.checkpoints))
    assert dataset.files() == undisturbed


def test_shards_of_a_frozen_worker_are_taken_over_and_its_late_writes_change_nothing(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    dataset.send()
    frozen = start(**SLOWER)
    until(lambda: _generated(dataset) > 0)
    frozen.freeze()
    start()
    assert _wait(dataset) is State.SUCCEEDED
    frozen.thaw()
    frozen.await_log("the lease ran out")
    assert frozen.terminate() == 0
    assert dataset.files() == undisturbed


def test_images_of_another_plan_are_not_reused(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    start()
    for prompts in (PROMPTS[:20], [f"another {n}" for n in range(20)]):
        dataset = planned_dataset(tmp_path / "data", client, namespace, prompts)
        dataset.send()
        assert _wait(dataset) is State.SUCCEEDED
        assert [document["prompt"] for document in dataset.documents(0)] == prompts
        (dataset.folder / "stats.json").unlink()


def test_a_row_that_fails_is_listed_with_its_reason_and_the_others_are_generated(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    prompts = [f"{n} [fail]" if n in (3, 25) else f"{n}" for n in range(40)]
    dataset = planned_dataset(tmp_path / "data", client, namespace, prompts)
    dataset.send()
    start()
    assert _wait(dataset) is State.SUCCEEDED
    assert len(dataset.samples()) == 38
    status = dataset.runs.get(dataset.run.id)
    assert status.failures_by_reason == {"device_error": 2}
    [failure] = dataset.stats(1)["failures"]
    assert (failure["row"], failure["code"]) == (25, "device_error")
    assert "told to fail" in failure["message"]


def test_a_run_with_too_many_failures_stops(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    prompts = ["[fail]"] * 20 + [f"{n}" for n in range(200)]
    dataset = planned_dataset(tmp_path / "data", client, namespace, prompts, max_failures=5)
    dataset.send()
    start(**SLOW)
    assert _wait(dataset) is State.FAILED
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    until(lambda: not client.keys(f"{namespace}.bulk*"))
    assert len(dataset.samples()) < 200


def test_a_row_that_kills_workers_is_found_and_the_others_are_generated(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    prompts = [f"{n} [die]" if n == 11 else f"{n}" for n in range(20)]
    dataset = planned_dataset(tmp_path / "data", client, namespace, prompts)
    dataset.send()
    for _ in range(4):
        assert start(IMAGEFLEET_MODEL="fake", IMAGEFLEET_MAX_DELIVERIES="2").wait(300) == -9
    start(IMAGEFLEET_MODEL="fake", IMAGEFLEET_MAX_DELIVERIES="2")
    assert _wait(dataset, 120) is State.SUCCEEDED
    assert len(dataset.samples()) == 19
    [failure] = dataset.stats(0)["failures"]
    assert (failure["row"], failure["code"]) == (11, "too_many_deliveries")


def test_a_cancelled_run_stops_between_batches(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    """It stops long before its first checkpoint is due."""
    prompts = [f"{n}" for n in range(400)]
    dataset = planned_dataset(tmp_path / "data", client, namespace, prompts, shard_size=400)
    dataset.send()
    start(**{**SLOW, "IMAGEFLEET_BULK_CHECKPOINT_S": "3600"})
    until(lambda: dataset.runs.get(dataset.run.id).shards_by_state[State.RUNNING])
    dataset.runs.cancel(dataset.run.id)
    until(lambda: not client.keys(f"{namespace}:claims:*"))
    until(lambda: not client.keys(f"{namespace}.bulk*"))
    assert dataset.runs.get(dataset.run.id).state is State.CANCELLED
    assert not dataset.samples()


def test_the_message_of_an_ended_shard_is_deleted(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS)
    dataset.send()
    dataset.runs.begin(dataset.run.id, 0, "a", "host")
    dataset.runs.fail(dataset.run.id, 0, "a", "host", 20, StorageDenied("full"))  # and it dies
    start()
    assert _wait(dataset) is State.FAILED
    assert len(dataset.samples()) == 40
    until(lambda: not client.keys(f"{namespace}.bulk*"))


def test_jobs_run_before_rows_of_datasets(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path, producer: Client
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, [f"{n}" for n in range(1_000)])
    dataset.send()
    start(**SLOW)
    until(lambda: _generated(dataset) > 0)
    jobs = producer.submit_many([f"job {n}" for n in range(16)])
    for job in jobs:
        job.result(timeout=900)
    assert not dataset.is_finished()
    dataset.runs.cancel(dataset.run.id)


def test_a_host_that_cannot_make_a_shard_requeues_it_for_other_workers(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    format = BulkFormat.PARQUET
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS, format=format)
    dataset.send()
    (tmp_path / "pyarrow.py").write_text("raise ImportError(name='pyarrow')")
    patient = {"IMAGEFLEET_LEASE_S": "600"}  # no lease expires
    start(PYTHONPATH=str(tmp_path), **patient).await_log("requeued for other workers")
    start(**patient)
    assert _wait(dataset) is State.SUCCEEDED
    assert dataset.runs.get(dataset.run.id).images == len(PROMPTS)
    assert not client.hgetall(f"{namespace}:deliveries")


def test_two_hosts_share_a_run_of_few_rows(
    start: StartWorker, tmp_path: Path, producer: Client
) -> None:
    workers = [start(IMAGEFLEET_MODEL="fake:seconds=0.1,capacity=8") for _ in range(2)]
    for worker in workers:
        worker.await_log("ready after")
    assert producer.dry_run_bulk([f"{n}" for n in range(498)], tmp_path / "data").shards == 8
    ended = producer.bulk([f"{n}" for n in range(498)], tmp_path / "data").wait(900)
    assert (ended.state, ended.images, len(ended.images_by_worker)) == (State.SUCCEEDED, 498, 2)


def test_a_run_that_no_living_worker_can_write_is_refused_at_once(
    start: StartWorker, settings: dict[str, str], namespace: str, tmp_path: Path, producer: Client
) -> None:
    worker = start(PYTHONPATH=str(_without_pyarrow(tmp_path)))
    worker.await_log("ready after")
    destination = tmp_path / "data"
    for call in (producer.bulk, producer.dry_run_bulk):
        with pytest.raises(InvalidRequest) as refused:
            call(PROMPTS, destination, format="parquet")
        sentence = str(refused.value)
        assert sentence.startswith("format='parquet': no living worker can write it; on ")
        assert "imagefleet-….whl[dataset]" in sentence
        assert platform.node() in sentence
    assert not destination.exists()
    assert producer.dry_run_bulk(PROMPTS, destination, format="files").workers == 1
    report = CliRunner().invoke(main, ["doctor"], env=settings)
    assert re.search(
        "^warn  workers .*1 worker cannot write .* format parquet", report.output, re.M
    )
    start().await_log("ready after")  # a host with pyarrow
    assert producer.dry_run_bulk(PROMPTS, destination, format="parquet").workers == 2


def test_the_reason_of_a_run_that_failed_is_told_with_its_text(
    start: StartWorker, settings: dict[str, str], tmp_path: Path, producer: Client
) -> None:
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=100, format="parquet")
    start(PYTHONPATH=str(_without_pyarrow(tmp_path)), IMAGEFLEET_MAX_DELIVERIES="1")
    ended = run.wait(900)
    assert (ended.state, ended.images) == (State.FAILED, 0)
    assert ended.images_by_worker == {}  # it was found before an image was made
    for command in ("wait", "status"):
        told = CliRunner().invoke(main, ["bulk", command, run.id], env=settings).output
        sentence = " ".join(told.split())  # in lines of a terminal
        assert re.search("configuration_error of 1 shard.* parquet .*pyarrow", sentence), told


def test_shards_are_left_to_a_living_worker_that_can_write_them_however_busy_it_is(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    producer: Client,
    make_claims: MakeClaims,
) -> None:
    busy = make_claims("able:1:x", lease_s=3600)
    formats = ("webdataset", "files", "parquet")
    status = WorkerStatus(
        worker=busy.worker, state=WorkerState.READY, model="fake", shard_formats=formats
    )
    client.hset(workers_key(namespace), busy.worker, status.dump())
    run = producer.bulk(PROMPTS, tmp_path / "data", shard_size=100, format="parquet")
    unable = start(PYTHONPATH=str(_without_pyarrow(tmp_path)), IMAGEFLEET_MAX_DELIVERIES="1")
    until(lambda: unable.output().count("a shard is left to workers that can write it") > 3)
    assert (
        run.status().state is State.RUNNING
    )  # alone it would have failed the shard at its third try
    start()
    assert run.wait(900).state is State.SUCCEEDED


def _without_pyarrow(folder: Path) -> Path:
    """Return a folder that hides pyarrow from a Python that has it in its path."""
    path = folder / "hidden"
    path.mkdir()
    (path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    return path


def test_a_run_for_a_model_that_no_worker_has_fails_after_some_attempts(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(
        tmp_path / "data", client, namespace, ["a"], model_digest="sha256:" + "1" * 64
    )
    dataset.send()
    worker = start(IMAGEFLEET_MAX_DELIVERIES="1")
    assert _wait(dataset) is State.FAILED
    assert dataset.runs.get(dataset.run.id).failures_by_reason == {"checkpoint_error": 1}
    assert [shard.tries for shard in dataset.runs.shards(dataset.run.id)] == [3]
    assert "the plan was made for model sha256:1111" in worker.output()
    assert dataset.files() == {}
    assert not files_below(dataset.checkpoints)
    assert not client.hgetall(f"{namespace}:deliveries")


@pytest.mark.parametrize("format", [BulkFormat.FILES, BulkFormat.PARQUET])
def test_files_and_parquet_hold_the_same_samples(
    start: StartWorker,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
    format: BulkFormat,
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, PROMPTS[:30], format=format)
    dataset.send()
    start()
    assert _wait(dataset) is State.SUCCEEDED
    if format is BulkFormat.FILES:
        files = dataset.files()
        for document in dataset.documents(1):
            image = files[f"00001/{document['key']}.png"]
            assert hashlib.sha256(image).hexdigest() == document["sha256"]
            assert files[f"00001/{document['key']}.txt"].decode() == document["prompt"]
        return
    from pyarrow import parquet

    table = parquet.read_table(dataset.folder / "00001.parquet").to_pylist()
    assert [row["prompt"] for row in table] == PROMPTS[20:30]
    for row in table:
        assert hashlib.sha256(row["image"]["bytes"]).hexdigest() == row["sha256"]
        assert (row["part_id"], row["width"], row["cfg"]) == (1, 64, 7.5)
