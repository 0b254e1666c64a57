"""Images are deleted when the `keep` of their job is over, and nothing else, whatever happens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from imagefleet import Client, InvalidInput, InvalidRequest, JobStatus, State
from imagefleet.shared.errors import StorageDenied, StorageUnavailable
from imagefleet.shared.jobs.image_expiry import ClaimedExpiry, ImageExpiry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import expiring_key, job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore, announced_url, open_store
from imagefleet.shared.storage.base import always
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.jobs.image_sweeper import ImageSweeper
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.stores import check_image_store
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until
from tests.support.records import result_of_one_image
from tests.support.s3 import signed_s3

KEPT_S = 3600.0


@pytest.fixture(params=["folder", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, settings: dict[str, str]
) -> Iterator[ObjectStore]:
    """The store of the fleet, as this process reads it."""
    if request.param == "folder":
        yield open_store(settings["IMAGEFLEET_STORAGE_URL"])
        return
    with signed_s3() as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.credentials.environment().items():
            patch.setenv(name, value)
        settings["IMAGEFLEET_STORAGE_URL"] = s3.url("run-1")
        yield open_store(s3.url("run-1"))


def _deleted(client: Client, job_id: str) -> JobStatus | None:
    [status] = client.statuses([job_id])
    return status if status.images_deleted_at is not None else None


def test_workers_delete_the_images_of_a_job_when_its_time_is_over(
    start: StartWorker,
    store: ObjectStore,
    producer: Client,
    client: redis.Redis,
    namespace: str,
    settings: dict[str, str],
) -> None:
    start(IMAGEFLEET_KEEP="1s")
    first = producer.submit("a", id="a", keep="1d", num_images_per_prompt=2)
    image = first.result(300).images[0].open()
    second = producer.submit("b", id="b", image=image)
    result = second.result(300)
    status = until(lambda: _deleted(producer, "b"))
    assert (status.state, status.result) == (State.SUCCEEDED, result)
    assert status.finished_at is not None
    assert status.images_kept_until == pytest.approx(status.finished_at + 1, abs=0.001)
    with pytest.raises(InvalidInput, match="any more"):
        result.images[0].read()
    kept = [f"jobs/a/{name}" for name in ("0.json", "0.png", "1.json", "1.png")]
    assert sorted(store.list()) == [str(status.request.image), *kept]
    status = first.status()
    assert (status.request.keep, status.images_deleted_at) == (86_400, None)
    assert status.finished_at is not None
    assert status.images_kept_until == pytest.approx(status.finished_at + 86_400, abs=0.001)
    address = announced_url(settings["IMAGEFLEET_STORAGE_URL"], store)  # with the endpoint of S3
    assert client.keys(f"{namespace}:expiring:*") == [expiring_key(namespace, str(address))]
    first.delete()
    assert not client.keys(f"{namespace}:expiring:*")


def test_images_are_kept_for_ever_unless_somebody_says_how_long(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    start()
    job = producer.submit("a")
    assert finish(producer, [job]) == {State.SUCCEEDED}
    assert job.status().images_kept_until is None
    assert not client.keys(f"{namespace}:expiring:*")


def test_a_worker_that_may_not_delete_does_not_start_with_a_time_for_all_images(
    start: StartWorker,
) -> None:
    with signed_s3(rights=["PutObject", "GetObject", "ListBucket"]) as s3:
        settings = {**s3.credentials.environment(), "IMAGEFLEET_STORAGE_URL": s3.url()}
        worker = start(**settings, IMAGEFLEET_KEEP="30d")
        assert worker.wait() == ExitCode.CONFIG
        assert (
            "IMAGEFLEET_KEEP needs the right to delete: IMAGEFLEET_STORAGE_URL: s3://images/: "
            in worker.output()
        )
        assert "these credentials lack the right DeleteObject" in worker.output()


class UnavailableAtFirst(MemoryStore):
    """The first `failures` deletions of a folder fail, as those of a server that restarts."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures

    def delete_below(self, folder: str, may_delete: Callable[[], bool] = always) -> None:
        if self._failures:
            self._failures -= 1
            raise StorageUnavailable("no answer")
        super().delete_below(folder, may_delete)


def test_a_worker_that_starts_waits_for_the_check_of_its_right_to_delete() -> None:
    check_image_store(UnavailableAtFirst(2), WorkerSettings.load(keep="30d"))
    impatient = WorkerSettings.load(keep="30d", storage_retry_s=0)
    with pytest.raises(StorageUnavailable, match="IMAGEFLEET_STORAGE_URL: no answer"):
        check_image_store(UnavailableAtFirst(1), impatient)


@dataclass
class Store:
    """A store of one fleet that a test fills and sweeps by itself, without a worker process."""

    records: JobRecords
    expiry: ImageExpiry
    objects: ObjectStore
    sweeper: ImageSweeper

    @classmethod
    def at(cls, client: redis.Redis, namespace: str, objects: ObjectStore) -> "Store":
        expiry = ImageExpiry(client, namespace, objects.url)
        sweeper = ImageSweeper(expiry, objects)
        return cls(JobRecords(client, namespace, 3600), expiry, objects, sweeper)

    def start(self, job_id: str, keep: float | None = KEPT_S) -> JobRequest:
        """Submit a job unless it has a record, start it, and store an image of its attempt."""
        request = JobRequest.parse({"prompt": "a", "seed": 1, "keep": keep})
        self.records.submit([(job_id, request)])
        time = self.expiry.keep_time(request)
        [started] = self.records.start(StartRequest(job_id=job_id, attempt="x", keep=time))
        assert started.happened
        self.objects.put(f"jobs/{job_id}/0.png", b"image", "image/png")
        return request

    def succeed(self, job_id: str, keep: float | None = KEPT_S) -> None:
        request = self.start(job_id, keep)
        time = self.expiry.keep_time(request)
        assert self.records.succeed(job_id, "x", result_of_one_image(), None, keep=time).happened

    def stored(self) -> list[str]:
        return sorted(key.split("/")[1] for key in self.objects.list("jobs/"))


@pytest.fixture
def memory(client: redis.Redis, namespace: str) -> Store:
    return Store.at(client, namespace, open_store("memory://"))


@pytest.fixture
def due(client: redis.Redis, namespace: str, memory: Store) -> Any:
    """Return a function that makes entries due, as if their time had passed."""

    def make_due(*job_ids: str) -> None:
        key = expiring_key(namespace, memory.objects.url)
        client.zadd(key, {job_id: index for index, job_id in enumerate(job_ids)}, xx=True)
        for job_id in job_ids:
            if client.hexists(job_key(namespace, job_id), "images_kept_until"):
                client.hset(job_key(namespace, job_id), "images_kept_until", 1)

    return make_due


def test_only_what_is_due_is_deleted(memory: Store, due: Any) -> None:
    for job_id in ("a", "a.2", "b"):
        memory.succeed(job_id)
    assert memory.sweeper.sweep() == (0, 0)
    due("a", "b")
    assert memory.sweeper.sweep() == (2, 0)
    assert memory.stored() == ["a.2"]
    assert memory.sweeper.sweep() == (0, 0)


def test_a_job_that_runs_again_keeps_its_images_until_it_has_ended(memory: Store, due: Any) -> None:
    memory.start("a")
    due("a")
    assert memory.sweeper.sweep() == (0, 0)
    memory.records.requeue(("a", "x"))
    due("a")
    assert memory.sweeper.sweep() == (0, 0)
    assert memory.stored() == ["a"]
    memory.succeed("a")
    assert memory.sweeper.sweep() == (0, 0)


def test_what_an_attempt_stored_is_deleted_although_its_job_was_cancelled_in_the_queue(
    memory: Store, due: Any
) -> None:
    memory.start("a")
    memory.records.requeue(("a", "x"))
    assert memory.records.cancel("a", "", None).happened
    due("a")
    assert memory.sweeper.sweep() == (1, 0)
    assert memory.stored() == []
    assert memory.records.get("a").images_deleted_at is None  # it had no images to speak of


def test_images_are_deleted_although_the_record_expired_before(
    memory: Store, due: Any, client: redis.Redis, namespace: str
) -> None:
    memory.succeed("a")
    client.delete(job_key(namespace, "a"))
    due("a")
    assert memory.sweeper.sweep() == (1, 0)
    assert memory.stored() == []
    assert not client.exists(job_key(namespace, "a"))


@pytest.mark.parametrize("keep", [None, KEPT_S])
def test_the_time_of_an_earlier_job_with_the_same_id_does_not_count(
    memory: Store, due: Any, client: redis.Redis, namespace: str, keep: float | None
) -> None:
    memory.succeed("a")
    client.delete(job_key(namespace, "a"))
    due("a")
    memory.succeed("a", keep)
    assert memory.sweeper.sweep() == (0, 0)
    assert memory.stored() == ["a"]
    assert bool(client.keys(f"{namespace}:expiring:*")) is (keep is not None)


@pytest.mark.parametrize("keep", [None, 3 * KEPT_S])
def test_the_time_of_an_attempt_that_died_does_not_count(
    memory: Store, due: Any, client: redis.Redis, namespace: str, keep: float | None
) -> None:
    memory.start("a")
    due("a")
    other_address = ImageExpiry(client, namespace, "memory://other-address", keep)
    time = other_address.keep_time(JobRequest.parse({"prompt": "a", "seed": 1}))
    image = result_of_one_image()
    assert memory.records.succeed("a", "x", image, None, keep=time).happened
    assert memory.sweeper.sweep() == (0, 0)
    assert memory.stored() == ["a"]
    kept_until = memory.records.get("a").images_kept_until
    entry = client.zscore(expiring_key(namespace, memory.objects.url), "a")
    assert entry == (None if keep is None else pytest.approx(kept_until, abs=1e-6))


def test_a_job_that_is_started_while_its_images_are_deleted_is_due_again_later(
    memory: Store, due: Any, client: redis.Redis, namespace: str
) -> None:
    memory.succeed("a")
    due("a")
    claimed = memory.expiry.claim()
    assert claimed is not None
    client.delete(job_key(namespace, "a"))
    memory.succeed("a")
    assert not memory.expiry.finish(claimed)
    assert memory.records.get("a").images_deleted_at is None
    assert client.zcard(expiring_key(namespace, memory.objects.url)) == 1


@pytest.mark.parametrize("keep", [None, KEPT_S])
def test_an_attempt_that_starts_during_the_deletion_keeps_what_it_stores(
    client: redis.Redis,
    namespace: str,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    keep: float | None,
) -> None:
    fleet = Store.at(client, namespace, store)
    fleet.succeed("a", 1e-6)
    store.put("jobs/a/1.png", b"image", "image/png")
    is_claimed = fleet.expiry.is_claimed
    left: list[list[str]] = []

    def start_again_after_one_object(claimed: ClaimedExpiry) -> bool:
        left.append(list(store.list("jobs/")))
        if len(left) == 2:
            client.delete(job_key(namespace, "a"))
            fleet.succeed("a", keep)
            store.put("jobs/a/1.png", b"image", "image/png")
        return is_claimed(claimed)

    monkeypatch.setattr(fleet.expiry, "is_claimed", start_again_after_one_object)
    assert fleet.sweeper.sweep() == (0, 0)
    assert [len(keys) for keys in left] == [2, 1]
    assert sorted(store.list("jobs/")) == ["jobs/a/0.png", "jobs/a/1.png"]


def test_what_a_worker_claimed_and_did_not_delete_is_due_again(memory: Store, due: Any) -> None:
    memory.succeed("a")
    due("a")
    assert memory.expiry.claim() is not None
    assert memory.expiry.claim() is None  # another worker does not do the same work meanwhile
    due("a")
    assert memory.sweeper.sweep() == (1, 0)


def test_a_store_that_denies_is_asked_three_times_and_nothing_is_forgotten(
    memory: Store, due: Any, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in "abcde":
        memory.succeed(job_id)
    due(*"abcde")

    def deny(folder: str, may_delete: Callable[[], bool]) -> None:
        raise StorageDenied("no")

    with monkeypatch.context() as patch:
        patch.setattr(memory.objects, "delete_below", deny)
        assert memory.sweeper.sweep() == (0, 3)
    assert memory.sweeper.sweep() == (2, 0)  # the others, at once
    assert memory.stored() == ["a", "b", "c"]
    assert client.zcard(expiring_key(namespace, memory.objects.url)) == 3


def test_an_entry_that_names_no_job_is_logged_once_and_removed(
    memory: Store, due: Any, client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory.succeed("a")
    key = expiring_key(namespace, memory.objects.url)
    client.zadd(key, {"a b": 0, "a/0.png": 0, "../a": 0, "": 0})
    due("a")
    assert memory.sweeper.sweep() == (1, 0)
    assert caplog.text.count("names no job") == 4
    assert not client.exists(key)


def test_a_worker_deletes_nothing_of_the_store_of_others(
    memory: Store, due: Any, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    other = Store.at(client, namespace, open_store(tmp_path.as_uri()))
    memory.succeed("a")
    due("a")
    assert other.sweeper.sweep() == (0, 0)
    assert memory.sweeper.sweep() == (1, 0)


def test_what_is_due_survives_a_crash_of_redis(
    own_redis: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    with connect(own_redis.url) as client:
        store = Store.at(client, namespace, open_store((tmp_path / "store").as_uri()))
        store.succeed("a", keep=0.01)
        own_redis.kill()
        own_redis.start()
        assert store.sweeper.sweep() == (1, 0)
        assert store.stored() == []


@pytest.mark.parametrize(
    ("keep", "limit"),
    [
        (0, "must be greater than 0"),
        ("0d", "must be greater than 0"),
        ("4000d", "must be less than or equal to 315360000"),
        (float("nan"), "must be"),
        ("a month", "must be a whole number with s, m, h or d, as in 12h or 30d"),
        ("1.5d", "must be a whole number with s, m, h or d"),
        (True, "must be seconds, or a text as in 12h or 30d"),
    ],
)
def test_a_wrong_time_is_refused(producer: Client, keep: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        producer.submit("a", keep=keep)
    assert refused.value.field == "keep"


@pytest.mark.parametrize(
    ("keep", "seconds"), [("90s", 90), ("45m", 2_700), ("12h", 43_200), ("30d", 2_592_000), (9, 9)]
)
def test_a_time_is_kept_in_seconds(producer: Client, keep: Any, seconds: float) -> None:
    assert producer.submit("a", keep=keep).status().request.keep == seconds
