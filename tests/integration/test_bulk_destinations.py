"""A shard that a producer sends to a place that is not the fleet's: the worker opens nothing."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from imagefleet import Client, InvalidRequest
from imagefleet.shared.jobs.model import State
from tests.support.datasets import Dataset, planned_dataset
from tests.support.files import files_below
from tests.support.processes import StartWorker, until

AWS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_REGION": "x"}


@pytest.fixture
def dataset(client: redis.Redis, namespace: str, tmp_path: Path) -> Dataset:
    return planned_dataset(tmp_path / "data", client, namespace, ["a cat", "a dog", "a fox"])


def _failed(dataset: Dataset) -> dict[str, int]:
    """Wait for the end of the run, and return the reasons of its failures. Its plan was never read,
    and all its images count as failed."""
    until(lambda: dataset.runs.get(dataset.run.id).done)
    status = dataset.runs.get(dataset.run.id)
    assert status.state is not State.SUCCEEDED
    assert status.failed_images == status.samples
    return dict(status.failures_by_reason)


def test_a_worker_does_not_connect_to_an_endpoint_that_only_the_producer_names(
    start: StartWorker, dataset: Dataset
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        place = f"s3://bucket/data?endpoint_url=http://127.0.0.1:{port}"
        foreign = replace(dataset, run=replace(dataset.run, destination=place))
        foreign.send()
        worker = start(IMAGEFLEET_BULK_STALLED_S="1", **AWS)
        assert _failed(foreign) == {"invalid_request": 3}
        listener.settimeout(3)  # the recovery of stalled runs looks at the destination too
        with pytest.raises(TimeoutError):
            listener.accept()
    [line] = [line for line in worker.output().splitlines() if "shard 00000 failed" in line]
    assert f"http://127.0.0.1:{port}" in line
    assert "add it to IMAGEFLEET_BULK_ALLOW of the workers if it is yours" in line
    assert "hunter2" not in worker.output()


def test_a_worker_with_other_storage_does_not_write_to_a_folder_of_its_host(
    start: StartWorker, dataset: Dataset, tmp_path: Path
) -> None:
    before = files_below(dataset.folder)
    dataset.send()
    worker = start(IMAGEFLEET_BULK_ALLOW=f"{tmp_path}/elsewhere")
    assert _failed(dataset) == {"invalid_request": 3}
    assert files_below(dataset.folder) == before
    assert "this worker does not write to that folder" in worker.output()


def test_a_folder_that_the_operator_names_may_be_written(
    start: StartWorker, dataset: Dataset, tmp_path: Path
) -> None:
    dataset.send()
    start(IMAGEFLEET_BULK_ALLOW=f"https://minio:9000,{tmp_path}")
    until(dataset.is_finished)
    assert dataset.runs.get(dataset.run.id).state is State.SUCCEEDED


@pytest.mark.parametrize("folder", ["jobs", "inputs"])
def test_a_dataset_among_the_images_of_jobs_is_refused_before_anything_is_written(
    start: StartWorker, producer: Client, tmp_path: Path, folder: str
) -> None:
    start().await_log("ready after")
    destination = tmp_path / "store" / folder / "data"
    for begin in (producer.bulk, producer.dry_run_bulk):
        with pytest.raises(InvalidRequest, match=f"lies in {folder}/ of the image store"):
            begin(["a cat"], destination)
    assert not destination.exists()
