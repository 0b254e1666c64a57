"""A fleet whose images and datasets are in Google Cloud Storage."""

from collections.abc import Iterator

import pytest

from imagefleet import Client, UnknownJob
from imagefleet.shared.storage import ObjectStore, open_store
from tests.support.gcs import LocalGcs, local_gcs
from tests.support.processes import StartWorker


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> Iterator[LocalGcs]:
    """The server, for the worker and for this process."""
    with local_gcs() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        settings["IMAGEFLEET_STORAGE_URL"] = server.url("run-1")
        yield server


@pytest.fixture
def bucket(server: LocalGcs) -> ObjectStore:
    return open_store(server.url())


def test_images_are_stored_read_started_from_and_deleted(
    start: StartWorker, producer: Client, bucket: ObjectStore
) -> None:
    start().await_log("ready after")
    first = producer.submit("a red star", id="a")
    [image] = first.result(timeout=900).images
    assert image.url == "gs://images/run-1/jobs/a/0.png"
    second = producer.submit("a blue star", id="b", image=image.open())
    assert second.result(timeout=900).images[0].open().size == (64, 64)
    third = producer.submit("a blue star", id="c", image=image.url)
    assert third.result(timeout=900).images[0].read()[:4] == b"\x89PNG"
    first.delete()
    with pytest.raises(UnknownJob):
        first.status()
    names = {key.rpartition("/")[0] for key in bucket.list()}
    assert names == {"run-1/inputs", "run-1/jobs/b", "run-1/jobs/c"}


def test_a_dataset_is_read_from_and_written_to_a_bucket(
    start: StartWorker, producer: Client, bucket: ObjectStore
) -> None:
    start()
    bucket.put("rows/1.csv", b"prompt\na red star\n", "text/csv")
    bucket.put("rows/2.csv", b"prompt\na blue star\n", "text/csv")
    run = producer.bulk("gs://images/rows/*.csv", "gs://images/data", num_images_per_prompt=2)
    assert run.wait(timeout=900).images == 4
    assert run.verify(sample=1).clean
    assert bucket.exists("data/00000.tar")
