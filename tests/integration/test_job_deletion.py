"""A job that has ended can be deleted, with its images and metadata and nothing else."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
import redis

from imagefleet import (
    AsyncClient,
    Client,
    ConfigurationError,
    InvalidRequest,
    JobFailed,
    State,
    StorageDenied,
    UnknownJob,
)
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.testing import FakeFleet
from tests.support import forked
from tests.support.processes import StartWorker
from tests.support.records import result_of_one_image, start_attempt
from tests.support.s3 import SignedS3, signed_s3

TIMEOUT_S = 60


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_succeeded_job_is_deleted_with_its_objects_only(tmp_path: Path) -> None:
    with FakeFleet(folder=tmp_path) as fleet:
        first = fleet.client.submit("a", id="j", num_images_per_prompt=2)
        image = first.result(TIMEOUT_S).images[0].open()
        other = fleet.client.submit("b", id="j.2", image=image)
        other.result(TIMEOUT_S)
        kept = {"jobs/j.2/0.png", "jobs/j.2/0.json", other.status().request.image}
        gone = {f"jobs/j/{name}" for name in ("0.png", "0.json", "1.png", "1.json")}
        assert _files(tmp_path) == kept | gone
        first.delete()
        assert _files(tmp_path) == kept
        with pytest.raises(UnknownJob):
            first.status()
        with pytest.raises(UnknownJob):
            fleet.client.delete("j")
        assert other.result().images[0].read()


def test_what_a_failed_job_stored_is_deleted(tmp_path: Path) -> None:
    with FakeFleet(folder=tmp_path) as fleet:
        fleet.fail("a")
        job = fleet.client.submit("a")
        with pytest.raises(JobFailed):
            job.result(TIMEOUT_S)
        (tmp_path / "jobs" / job.id).mkdir(parents=True)
        (tmp_path / "jobs" / job.id / "0.png").write_text("stored before the attempt failed")
        job.delete()
        assert _files(tmp_path) == set()


def test_a_job_with_the_id_of_a_deleted_one_is_the_one_that_runs(
    producer: Client, start: StartWorker
) -> None:
    """The message of the deleted job is still in the queue, before that of its successor."""
    producer.submit("a cat", id="j").cancel()
    producer.delete("j")
    job = producer.submit("a dog", id="j", seed=1)
    worker = start()
    result = job.result(300)
    assert (job.status().request.prompt, job.status().deliveries) == ("a dog", 1)
    last = producer.submit("the last one")
    last.result(300)
    document = json.loads(
        open_store(result.images[0].url.partition("jobs/")[0]).get("jobs/j/0.json")
    )
    assert document["prompt"] == "a dog"
    assert "a message of job j is dropped: the job was deleted" in worker.output()


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_a_job_that_has_not_ended_is_refused(
    producer: Client, client: redis.Redis, namespace: str, state: State
) -> None:
    job = producer.submit("a", id="j")
    if state is State.RUNNING:
        start_attempt(JobRecords(client, namespace, 3600), "j", "x")
    with pytest.raises(InvalidRequest, match=f"id='j': is {state}; only a job that has ended"):
        job.delete()
    assert job.status().state is state


def test_a_job_cancelled_before_any_worker_was_ready_is_deleted(producer: Client) -> None:
    job = producer.submit("a")
    job.cancel()
    job.delete()
    with pytest.raises(UnknownJob):
        job.status()


class RedrivingStore:
    """An operator redrives the job while its images are deleted."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._redis, self._key = client, key

    def delete_below(self, folder: str) -> None:
        self._redis.hset(self._key, "state", "queued")


def test_a_job_that_is_queued_again_meanwhile_keeps_its_record(
    producer: Client, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = producer.submit("a")
    job.cancel()
    store = RedrivingStore(client, job_key(namespace, job.id))
    monkeypatch.setattr(producer.connection, "store", lambda model: store)
    with pytest.raises(InvalidRequest, match="is queued"):
        job.delete()
    assert job.status().state is State.QUEUED


def test_the_record_stays_until_the_images_can_be_deleted(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "not mounted"
    with FakeFleet(folder=store) as fleet:
        job = fleet.client.submit("a")
        job.result(TIMEOUT_S)
        store.rename(away)
        with pytest.raises(ConfigurationError, match="mount it"):
            job.delete()
        assert job.status().state is State.SUCCEEDED
        away.rename(store)
        job.delete()
        assert _files(store) == set()


def test_the_client_for_asyncio_deletes_too(
    producer: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    for job_id in "ab":
        producer.submit("a", id=job_id).cancel()

    async def run() -> None:
        async with AsyncClient(redis_server.url, namespace=namespace) as client:
            await client.delete("a")
            await (await client.get("b")).delete()

    asyncio.run(run())
    assert not producer.statuses("ab")


def test_the_command_deletes_what_has_ended_and_reports_the_others(
    producer: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        connection = ("--redis-url", redis_server.url, "--namespace", namespace)
        return forked.run("-m", "imagefleet.producer", "delete", *connection, *arguments)

    for job_id in "abc":
        producer.submit("a", id=job_id)
    producer.cancel("b")
    producer.cancel("c")
    done = run("a", "nobody", "b")
    assert (done.returncode, done.stdout) == (1, "b  deleted\n")
    waiting, unknown = done.stderr.splitlines()
    assert waiting.startswith("imagefleet: id='a': is queued; only a job that has ended")
    assert unknown.startswith("imagefleet: no job 'nobody' here")
    assert run("c", "--json").stdout == '{"id": "c", "deleted": true}\n'


def _client_in_s3(s3: SignedS3, server: LocalRedisServer, namespace: str) -> Client:
    settings = Settings.load(
        redis_url=server.url, namespace=namespace, storage_url=s3.url("run-1"), retention_s=3600
    )
    return Client(settings=settings)


def _succeed(records: JobRecords, store: ObjectStore, job_id: str) -> None:
    """Store an image of a job, with its metadata, and record the job as succeeded."""
    records.submit([(job_id, JobRequest.parse({"prompt": "a", "seed": 1}))])
    start_attempt(records, job_id, "x")
    for name in ("0.png", "0.json"):
        store.put(f"jobs/{job_id}/{name}", b"content", "image/png")
    assert records.succeed(job_id, "x", result_of_one_image(), None).happened


def test_the_objects_of_a_job_in_s3_are_deleted(
    redis_server: LocalRedisServer,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with signed_s3() as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        records, store = JobRecords(client, namespace, 3600), open_store(s3.url("run-1"))
        for job_id in ("j", "j.2"):
            _succeed(records, store, job_id)
        store.put("inputs/00.png", b"content", "image/png")
        with _client_in_s3(s3, redis_server, namespace) as producer:
            producer.delete("j")
            assert [each.id for each in producer.jobs()] == ["j.2"]
        assert sorted(store.list()) == ["inputs/00.png", "jobs/j.2/0.json", "jobs/j.2/0.png"]


@pytest.mark.parametrize("missing", ["DeleteObject", "ListBucket"])
def test_who_may_not_delete_in_s3_is_told_which_right_is_missing(
    redis_server: LocalRedisServer,
    client: redis.Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
) -> None:
    rights = {"PutObject", "GetObject", "ListBucket", "DeleteObject"} - {missing}
    with signed_s3(rights=sorted(rights)) as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        records, store = JobRecords(client, namespace, 3600), open_store(s3.url("run-1"))
        _succeed(records, store, "j")
        with _client_in_s3(s3, redis_server, namespace) as producer:
            with pytest.raises(StorageDenied, match=f"these credentials lack the right {missing}$"):
                producer.delete("j")
            assert producer.get("j").status().state is State.SUCCEEDED
        assert store.get("jobs/j/0.json") == b"content"
