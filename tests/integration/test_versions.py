"""This tree and the last release share one Redis: each does the other's work."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from PIL import Image

from imagefleet import Client, State
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until
from tests.support.receiver import Receiver
from tests.support.release import install_release, release_environment

SECRET = new_secret()
SUBMIT = """
import json, sys
from producer import Client
client = Client()
jobs = client.submit_many([f"prompt {n}" for n in range(int(sys.argv[1]))], num_inference_steps=4)
print(json.dumps([job.id for job in jobs]))
"""
WAIT = """
import json, sys
from producer import Client
client = Client()
jobs = [client.get(job_id) for job_id in json.load(sys.stdin)]
for job in client.as_completed(jobs, timeout=900):
    pass
print(json.dumps([str(job.status().state) for job in jobs]))
"""
DATASET = """
import sys
from producer import Client
run = Client().bulk([f"row {n}" for n in range(20)], sys.argv[1], shard_size=5)
print(run.id)
"""


class Release:
    """Processes of the last release, with the settings of one test."""

    def __init__(self, site: Path, settings: dict[str, str], folder: Path) -> None:
        self._environment = {**release_environment(site), **settings}
        self._folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []

    def run(self, program: str, *arguments: str, text: str = "") -> str:
        """Run a program of a producer; return what it prints."""
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=self._folder,
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start_worker(self, **settings: str) -> "subprocess.Popen[bytes]":
        """Start a worker of the release, with further settings."""
        with (self._folder / "release.log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "worker"],
                cwd=self._folder,
                env={**self._environment, **settings},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._workers.append(worker)
        return worker

    def stop(self) -> None:
        """Kill its workers; show their log if the test failed."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
        log = self._folder / "release.log"
        print(log.read_text()[-3000:] if log.exists() else "no worker of the release was started")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_release(tmp_path_factory.mktemp("release"))


@pytest.fixture
def release(site: Path, settings: dict[str, str], tmp_path: Path) -> Iterator[Release]:
    settings["IMAGEFLEET_LEASE_S"] = "600"  # nobody dies here, so nobody may be taken for dead
    release = Release(site, settings, tmp_path)
    yield release
    release.stop()


def _nothing_left(client: redis.Redis, namespace: str) -> bool:
    return not client.keys(f"{namespace}.*") and not client.keys(f"{namespace}:claims:*")


def test_this_worker_does_the_jobs_of_a_producer_of_the_release(
    release: Release, start: StartWorker, client: redis.Redis, namespace: str
) -> None:
    ids = release.run(SUBMIT, "20")
    start()
    assert set(json.loads(release.run(WAIT, text=ids))) == {"succeeded"}
    until(lambda: _nothing_left(client, namespace))


def test_a_worker_of_the_release_does_the_jobs_of_this_producer(
    release: Release, producer: Client, client: redis.Redis, namespace: str
) -> None:
    jobs = producer.submit_many([f"prompt {n}" for n in range(20)], num_inference_steps=4)
    release.start_worker()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    until(lambda: _nothing_left(client, namespace))


def test_both_workers_drain_one_queue_of_both_producers(
    release: Release, start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    theirs = release.run(SUBMIT, "100")
    ours = producer.submit_many([f"prompt {n}" for n in range(100)], num_inference_steps=4)
    start()
    release.start_worker()
    assert finish(producer, ours, timeout=900) == {State.SUCCEEDED}
    assert set(json.loads(release.run(WAIT, text=theirs))) == {"succeeded"}
    everything = [producer.get(job_id) for job_id in json.loads(theirs)] + ours
    assert {job.status().deliveries for job in everything} == {1}
    until(lambda: _nothing_left(client, namespace))


def test_a_rolling_upgrade_and_back_under_load_loses_and_repeats_nothing(
    release: Release, start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    slow = {"IMAGEFLEET_MODEL": "fake:seconds=0.25,capacity=4"}
    ids: list[str] = []

    def submit() -> None:
        ids.extend(json.loads(release.run(SUBMIT, "20")))
        ours = producer.submit_many([f"prompt {n}" for n in range(20)], num_inference_steps=4)
        ids.extend(job.id for job in ours)

    old = [release.start_worker(**slow) for _ in range(2)]
    new: list[Worker] = []
    until(lambda: client.zcard(f"{namespace}:leases") == 2)
    for worker in old:  # upgrade one after the other
        submit()
        new.append(start(**slow))
        new[-1].await_log("ready after")
        worker.terminate()
        assert worker.wait(300) == 0
    for upgraded in new:  # and back
        submit()
        release.start_worker(**slow)
        until(lambda: client.zcard(f"{namespace}:leases") == 3)
        assert upgraded.terminate() == 0
        until(lambda: client.zcard(f"{namespace}:leases") == 2)
    jobs = [producer.get(job_id) for job_id in ids]
    assert len(jobs) == 160
    assert finish(producer, jobs) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}
    until(lambda: _nothing_left(client, namespace))


def test_a_dataset_that_the_release_began_is_finished_here(
    release: Release, start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    run_id = release.run(DATASET, str(tmp_path / "data")).strip()
    start()
    run = producer.find_bulk(run_id)
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean


def test_a_dataset_begun_here_is_finished_by_the_release(
    release: Release, producer: Client, tmp_path: Path
) -> None:
    run = producer.bulk([f"row {n}" for n in range(20)], tmp_path / "data", shard_size=5)
    release.start_worker()
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean


def _state_at_end(receiver: Receiver) -> str | None:
    """Return how the receiver was told that a run has ended; None if it was not."""
    bodies = [json.loads(each.body) for each in receiver.deliveries]
    return next((each["data"]["state"] for each in bodies if each["type"] == "run.ended"), None)


def test_the_end_of_a_dataset_that_the_release_finishes_is_reported(
    release: Release, producer: Client, tmp_path: Path
) -> None:
    """Its scripts know no receivers, so the producer that waits reports the end."""
    rows = [f"row {n}" for n in range(20)]
    with Receiver([SECRET]) as receiver:
        run = producer.bulk(rows, tmp_path / "data", shard_size=5, callback_url=receiver.url)
        release.start_worker(
            IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1", IMAGEFLEET_WEBHOOK_SECRETS=SECRET
        )
        assert run.wait(300).state is State.SUCCEEDED
        until(lambda: _state_at_end(receiver) == "succeeded")
        assert all(each.verified for each in receiver.deliveries)
    assert run.verify().clean


def test_a_dataset_of_the_release_gets_a_receiver_by_the_same_command(
    release: Release, start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    """Its record has none of the fields of receivers."""
    release.run(DATASET, str(tmp_path / "data"))
    rows = [f"row {n}" for n in range(20)]
    with Receiver() as receiver:
        options = {"shard_size": 5, "callback_url": receiver.url}
        run = producer.bulk(rows, tmp_path / "data", **options)
        start(IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1")
        assert run.wait(300).state is State.SUCCEEDED
        until(lambda: _state_at_end(receiver) == "succeeded")
        assert {json.loads(each.body)["data"]["id"] for each in receiver.deliveries} == {run.id}


def test_a_worker_of_the_release_makes_no_dataset_that_starts_from_images(
    release: Release,
    start: StartWorker,
    producer: Client,
    client: redis.Redis,
    namespace: str,
    tmp_path: Path,
) -> None:
    """It would make them from their text alone. A worker of this tree sends its shards again."""
    rows = [{"prompt": f"row {n}", "image": "inputs/there.png"} for n in range(10)]
    store = tmp_path / "store" / "inputs"
    store.mkdir(parents=True)
    Image.new("RGB", (64, 64), "red").save(store / "there.png")
    run = producer.bulk([*rows, "from text"], tmp_path / "data", shard_size=6)
    release.start_worker()
    until(lambda: client.zcard(f"{namespace}:dead") == 2)
    assert not run.status().done
    assert run.status().images == 0
    until(lambda: not client.keys(f"{namespace}:claims:*"))  # it keeps its lease when it is killed
    release.stop()
    start(IMAGEFLEET_BULK_STALLED_S="1")
    assert run.wait(300).state is State.SUCCEEDED
    assert run.verify().clean
    assert all(b'"original"' in line for line in _metadata(tmp_path / "data")[:10])


def _metadata(folder: Path) -> list[bytes]:
    paths = sorted(folder.glob("0*.jsonl"))
    return [line for path in paths for line in path.read_bytes().splitlines()]
