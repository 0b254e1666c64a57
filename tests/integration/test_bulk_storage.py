"""Bulk runs into a bucket, and with a full disk or an unavailable store."""

import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.mounts import in_namespace
from tests.support.processes import StartWorker, until
from tests.support.s3 import BUCKET, FaultyS3, error, forward, reply, signed_s3

PROMPTS = [f"prompt {n}" for n in range(30)]


@pytest.mark.parametrize("format", ["webdataset", "files", "parquet"])
def test_a_dataset_is_generated_into_a_bucket(
    start: StartWorker, producer: Client, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    with signed_s3() as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        start(IMAGEFLEET_BULK_ALLOW=s3.endpoint_url)
        run = producer.bulk(PROMPTS, s3.url("data"), shard_size=10, format=format)
        assert run.wait(300).state is State.SUCCEEDED
        report = run.verify(sample=2)
        assert (report.clean, report.present, report.regenerated) == (True, 30, 2)
        until(lambda: not list(run.store.list("parts/")))
        assert producer.find_bulk(s3.url("data")) == run


class _UnavailableStore:
    """An S3 server that fails from the first shard on, until `available` is set."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._unavailable, self.available = threading.Event(), threading.Event()

    def __call__(self, door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        if door.command == "PUT" and door.path.endswith("/00000.tar"):
            self._unavailable.set()
        if self._unavailable.is_set() and not self.available.is_set():
            error(503, "SlowDown")(door, body, number)
        else:
            reply(door, *forward(self._upstream, door, body))


def test_a_store_that_is_unavailable_for_a_while_only_delays_the_run(
    start: StartWorker, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with signed_s3() as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        store = _UnavailableStore(s3.endpoint_url)
        with FaultyS3(store) as door:
            place = f"s3://{BUCKET}/data?endpoint_url={door.endpoint_url}"
            run = producer.bulk(PROMPTS, place, shard_size=10)
            worker = start(IMAGEFLEET_STORAGE_RETRY_S="1", IMAGEFLEET_BULK_ALLOW=door.endpoint_url)
            worker.await_log("shard 00000 is requeued for other workers")
            assert not run.status().done
            store.available.set()
            status = run.wait(300)
            assert (status.state, status.images, status.failed_images) == (State.SUCCEEDED, 30, 0)
            assert run.verify().clean


_SCRIPT = """
import subprocess, sys
from pathlib import Path
from imagefleet import Client
from tests.support.files import files_below
from tests.support.processes import Worker, until
from tests.support.settings import worker_settings

small, url, namespace, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
place = worker_settings(url, folder, IMAGEFLEET_NAMESPACE=namespace, IMAGEFLEET_MODEL="fake")
data = folder / "data"
with Client(url, namespace=namespace) as client:
    run = client.bulk([f"prompt {n}" for n in range(200)], data, shard_size=50)
    workers = [Worker(folder, {**place, "TMPDIR": str(folder / "tmp")})]
    try:
        workers[0].await_log("requeued for other workers")
        assert not run.status().done
        assert {problem.what for problem in run.verify().problems} == {"unfinished"}
        if small == "tmp":
            workers.append(Worker(folder, place))
        else:
            [error] = until(lambda: run.status().errors)
            assert error.code == "storage_denied", error
            assert error.message.endswith("the disk is full"), error
            workers[0].await_log("claims none for 16 s, or until the store can be written")
            subprocess.run(["mount", "-o", "remount,size=20m", str(data)], check=True)
        status = run.wait(300)
        assert (status.state.value, status.images) == ("succeeded", 200), status
        assert run.verify().clean
        assert run.status().errors == (), run.status()
        # With the disk of the dataset it depends on the moment: the pause may end before a probe.
        written_again = "can be written again: this worker claims shards"
        assert small == "data" or written_again not in workers[0].output(), workers[0].output()
        until(lambda: not [path for path in files_below(data) if path.name.startswith(".")])
        reason = "No space left" if small == "tmp" else "the disk is full"
        assert reason in workers[0].output(), workers[0].output()
        assert "unexpected error" not in workers[0].output(), workers[0].output()
    finally:
        for worker in workers:
            worker.kill()
"""


@pytest.mark.parametrize("small", ["data", "tmp"])
def test_a_run_continues_when_disk_space_is_available_again_or_on_another_host(
    redis_server: LocalRedisServer, namespace: str, tmp_path: Path, small: str
) -> None:
    for name in ("data", "tmp"):
        (tmp_path / name).mkdir()
    mount = f'mount -t tmpfs -o size=120k none "{tmp_path}/{small}"'
    if in_namespace(mount).returncode:
        pytest.skip("this kernel lets nobody but root mount a file system")
    arguments = [small, redis_server.url, namespace, str(tmp_path)]
    done = in_namespace(f'{mount} && exec "$@"', sys.executable, "-c", _SCRIPT, *arguments)
    assert done.returncode == 0, done.stderr
