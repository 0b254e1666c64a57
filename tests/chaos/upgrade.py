"""`python -m tests.chaos.upgrade`: upgrade a fleet from the last release under load, and back.

The workers and the producer of the release run first, from its commit of this repository. Then each
worker is replaced, one after the other, and the producer after them; and back, the producer first.
Workers get a second to drain, so they requeue what they have. Harder than docs/operations.md asks
for, the workers go back while jobs of the newer producer wait. Both releases run with the packages
that are installed here. The exit code is 1 if the audit found a problem.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

import click
from PIL import Image

from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.shared.storage.job_keys import metadata_key
from tests.chaos.audit import AuditReport, audit_records
from tests.chaos.options import finish_run, seed_option
from tests.chaos.oracle import FAKE
from tests.chaos.planned_jobs import SIZES, PlannedJob, Scenario, draw_jobs, without_callback
from tests.chaos.processes import ROOT
from tests.chaos.record_watcher import RecordWatcher
from tests.chaos.suite import NAMESPACE
from tests.chaos.waiting import is_idle

_RELEASE: Final = "f554469"
"""The commit of release 0.1.0."""
_THIS: Final = "this release"
_WORKERS: Final = 3
_STALL_S: Final = 300.0
_IN_FLIGHT: Final = (
    *(f"{NAMESPACE}:{name}" for name in ("leases", "deliveries", "later", "outbox", "dead")),
    f"{NAMESPACE}:claims:*",
    f"{NAMESPACE}.*",
)
"""Keys that must be gone when all jobs have ended and no worker runs."""
_PRODUCER: Final = """
import importlib, json, sys, time
client = importlib.import_module(sys.argv[1]).Client()
began = time.monotonic()
for line in sys.stdin:
    job = json.loads(line)
    time.sleep(max(0.0, began + job.pop("due_s") - time.monotonic()))
    client.submit(**job)
    print(job["id"], flush=True)
"""
"""Submits the jobs of its standard input, with the client of the package that is named."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The sources of one release, and what its packages are called."""

    name: str
    path: Path
    producer: str
    worker: str

    @classmethod
    def of(cls, name: str, root: Path) -> Self:
        if (root / "src").exists():
            package = "imagefleet"
            return cls(name=name, path=root / "src", producer=package, worker=f"{package}.worker")
        return cls(name=name, path=root, producer="producer", worker="worker")

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **settings, "PYTHONPATH": str(self.path)}


class Worker:
    """One worker process of a release."""

    def __init__(self, release: Release, settings: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", release.worker],
                cwd=log.parent,
                env=release.environment(settings),
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(),
            )
        self.pid = self._process.pid

    def is_ready(self) -> bool:
        """Return whether it takes work. Raise AssertionError if it ended."""
        assert self._process.poll() is None, f"a worker ended: {self._log}"
        return "ready after" in self._log.read_text(errors="replace")

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self._process.terminate()
        return self._process.wait(_STALL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class Producer:
    """A process that submits planned jobs with the client of a release."""

    def __init__(
        self, release: Release, settings: Mapping[str, str], jobs: Sequence[PlannedJob], path: Path
    ) -> None:
        self._accepted, planned = path.with_suffix(".accepted"), path.with_suffix(".jsonl")
        lines = [{"id": job.id, "due_s": job.due_s, **job.parameters} for job in jobs]
        planned.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with planned.open("rb") as source, self._accepted.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PRODUCER, release.producer],
                cwd=path.parent,
                env=release.environment(settings),
                stdin=source,
                stdout=output,
                preexec_fn=die_with_parent(),
            )

    def is_done(self) -> bool:
        code = self._process.poll()
        assert not code, f"the producer of {self._accepted} ended with {code}"
        return code is not None

    def accepted(self) -> list[str]:
        """Return the ids of the jobs that the fleet accepted."""
        return self._accepted.read_text().split()


class UpgradeRun:
    """One run: workers and producers of both releases, and the records that they share."""

    def __init__(
        self, settings: Mapping[str, str], folder: Path, watcher: RecordWatcher, stack: ExitStack
    ) -> None:
        self._settings, self._folder, self._watcher = settings, folder, watcher
        self._stack = stack
        self.workers: list[Worker] = []
        self.producers: list[Producer] = []
        self.exit_codes: list[int] = []
        self.release_of: dict[str, str] = {}
        """By id of a job, the release of its producer."""
        self.releases: dict[int, str] = {}
        """By process id of a worker, the release that it is of."""

    def start_worker(self, release: Release) -> None:
        """Start a worker, and wait until it takes work."""
        log = self._folder / f"worker-{len(self.releases)}.log"
        worker = self._stack.enter_context(Worker(release, self._settings, log))
        self.releases[worker.pid] = release.name
        self.workers.append(worker)
        self.until(worker.is_ready)

    def replace_workers(self, release: Release) -> None:
        """Replace the workers, one after the other."""
        for worker in list(self.workers):
            self.workers.remove(worker)
            self.exit_codes.append(worker.stop())
            self.start_worker(release)

    def produce(self, release: Release, jobs: Sequence[PlannedJob]) -> Producer:
        path = self._folder / f"producer-{len(self.producers)}"
        self.producers.append(Producer(release, self._settings, jobs, path))
        self.release_of.update(dict.fromkeys((job.id for job in jobs), release.name))
        return self.producers[-1]

    def accepted(self) -> list[str]:
        return [job_id for producer in self.producers for job_id in producer.accepted()]

    def is_finished(self) -> bool:
        """Return whether all jobs have ended, and the workers hold nothing."""
        pids = {worker.pid for worker in self.workers}
        return not self._watcher.open and is_idle(self._watcher.lanes, pids)

    def until(self, done: Callable[[], bool]) -> None:
        """Watch the records until `done`. Raise AssertionError if no job ends for `_STALL_S`."""
        left, changed_at = -1, time.monotonic()
        while not done():
            assert time.monotonic() < changed_at + _STALL_S, "nothing happens any more"
            self._watcher.poll()
            if left != len(self._watcher.open):
                left, changed_at = len(self._watcher.open), time.monotonic()
            time.sleep(0.2)


def run(seed: int, jobs: int, seconds: float, commit: str, folder: Path) -> AuditReport:
    """Upgrade under load and go back. Each of three producers sends `jobs` within `seconds`."""
    report = AuditReport(title=f"{3 * jobs:,} jobs, from {commit} to this release and back")
    old, new = _check_out(commit, folder / "release"), Release.of(_THIS, ROOT)
    durations = (seconds, seconds / 4, seconds)  # so that many wait when the workers go back
    parts = [_draw(seed + n, jobs, each, f"job-{n}") for n, each in enumerate(durations)]
    planned = [job for part in parts for job in part]
    with ExitStack() as stack:
        server = stack.enter_context(LocalRedisServer(folder / "redis"))
        settings = {
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_NAMESPACE": NAMESPACE,
            "IMAGEFLEET_MODEL": "fake:seconds=0.3,capacity=4",
            "IMAGEFLEET_SHAPES": ",".join(f"{height}x{width}" for height, width in SIZES),
            "IMAGEFLEET_STORAGE_URL": (folder / "images").as_uri(),
            "IMAGEFLEET_LEASE_S": "6",
            "IMAGEFLEET_DRAIN_S": "1",
        }
        lanes = Lanes.single(connect(server.url), NAMESPACE)
        watcher = RecordWatcher(lanes, [job.id for job in planned])
        upgrade = UpgradeRun(settings, folder, watcher, stack)
        for _ in range(_WORKERS):
            upgrade.start_worker(old)
        producer = upgrade.produce(old, parts[0])
        upgrade.replace_workers(new)
        upgrade.until(producer.is_done)
        producer = upgrade.produce(new, parts[1])
        upgrade.until(producer.is_done)
        producer = upgrade.produce(old, parts[2])
        upgrade.replace_workers(replace(old, name=f"{commit}, again"))
        upgrade.until(lambda: producer.is_done() and upgrade.is_finished())
        codes = upgrade.exit_codes + [each.stop() for each in upgrade.workers]
        report.expect_none(
            "releases",
            "workers that ended with another code than 0",
            [each for each in codes if each],
        )
        statuses = watcher.read_all()
        audit_records(report, planned, upgrade.accepted(), statuses, watcher.first_terminal)
        store = open_store(settings["IMAGEFLEET_STORAGE_URL"])
        audit_images(report, planned, statuses, store, upgrade.releases)
        audit_releases(report, upgrade.release_of, upgrade.releases, statuses)
        left = [key for each in _IN_FLIGHT for key in watcher.client.scan_iter(each)]
        report.expect_none("left in Redis", "claims, leases, messages, callbacks", left)
    return report


def _check_out(commit: str, folder: Path) -> Release:
    command = ["git", "archive", commit]
    archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return Release.of(commit, folder)


def _draw(seed: int, jobs: int, seconds: float, prefix: str) -> list[PlannedJob]:
    """Draw jobs that every release runs: none fails, is cancelled or has a callback."""
    drawn = draw_jobs(seed, jobs=jobs, seconds=seconds, killers=0, callback_url="", prefix=prefix)
    return [
        replace(
            job,
            scenario=Scenario.SUCCEEDS,
            parameters={**job.parameters, "prompt": f"image of {job.id}"},
        )
        for job in map(without_callback, drawn)
    ]


def audit_images(
    report: AuditReport,
    planned: Sequence[PlannedJob],
    statuses: Mapping[str, JobStatus],
    store: ObjectStore,
    releases: Mapping[int, str],
) -> None:
    """Check that each job has its images and no others, and that each is as its record says.

    Those of this release must have the pixels that their jobs ask for. The fake engine of another
    release paints others.
    """
    wrong: list[str] = []
    count = 0
    keys = set(store.list("jobs/"))
    for job in planned:
        status = statuses.get(job.id)
        images = status.result.images if status is not None and status.result is not None else ()
        expected = list(FAKE.expected(job))
        count += len(expected)
        if [image.index for image in images] != [each.index for each in expected]:
            wrong.append(f"{job.id}: {len(images)} images")
            continue
        is_ours = _worker_release(status, releases) == _THIS
        for each, image in zip(expected, images, strict=True):
            data = store.get(each.key) if each.key in keys else b""
            recorded = (image.key, image.seed, image.size, image.sha256)
            is_right = recorded == (each.key, each.seed, len(data), sha256(data).hexdigest())
            if not is_right or (is_ours and not _same_pixels(data, each.data)):
                wrong.append(each.key)
            keys -= {each.key, metadata_key(job.id, each.index)}
    report.note("images", "of all jobs", count)
    report.expect_none("images", "missing, or others than the record's or job's", wrong)
    report.expect_none("images", "objects of no job", keys)


def audit_releases(
    report: AuditReport,
    release_of: Mapping[str, str],
    releases: Mapping[int, str],
    statuses: Mapping[str, JobStatus],
) -> None:
    """Check that workers of each release made jobs of each producer that was there before them, or
    beside them."""
    made = Counter(
        (release_of[job_id], _worker_release(status, releases))
        for job_id, status in statuses.items()
        if status.result is not None
    )
    old, new, again = dict.fromkeys(releases.values())
    for pair in ((old, old), (old, new), (new, new), (new, again), (old, again)):
        what = "jobs of {} that workers of {} finished".format(*pair)
        report.note("releases", what, made[pair])
        if not made[pair]:
            report.problems.append(f"{what}: none")


def _worker_release(status: JobStatus | None, releases: Mapping[int, str]) -> str:
    """Return the release of the worker that finished a job. Its name is `host:pid:random`."""
    assert status is not None
    assert status.result is not None
    return releases[int(status.result.worker.split(":")[1])]


def _same_pixels(one: bytes, other: bytes) -> bool:
    with Image.open(io.BytesIO(one)) as image, Image.open(io.BytesIO(other)) as expected:
        return image.mode == expected.mode and image.tobytes() == expected.tobytes()


@click.command()
@seed_option
@click.option("--jobs", default=200, show_default=True, help="Jobs of each of three producers.")
@click.option("--seconds", default=40.0, show_default=True, help="How long each one submits.")
@click.option("--release", default=_RELEASE, show_default=True, help="Commit of the release.")
@click.option("--folder", type=Path, default=None, help="Keep logs and Redis's files here.")
@click.option("--out", type=Path, default=None, help="Write the table to this file too.")
def main(
    seed: int, jobs: int, seconds: float, release: str, folder: Path | None, out: Path | None
) -> None:
    """Upgrade a fleet from the last release under load, go back, and audit."""
    kept = folder or Path(tempfile.mkdtemp(prefix="upgrade-"))
    report = run(seed, jobs, seconds, release, kept)
    finish_run(report, kept, out, keep=folder is not None)


if __name__ == "__main__":
    main()
