"""`python -m tests.chaos.partition`: cut one of two hosts off the network, twice, and audit.

Redis and S3 run on a third. The host is cut off silently first, then so that everything it sends is
answered with a reset. Its clock is an hour fast. The command needs root, the program `ip` and a C
compiler. The exit code is 1 if the audit found a problem.
"""

import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import click

from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.chaos.audit import AuditReport, audit_keys, audit_records
from tests.chaos.audit_images import audit_images
from tests.chaos.network import SERVER, Network
from tests.chaos.options import finish_run, seed_option
from tests.chaos.planned_jobs import SIZES, draw_jobs, without_callback
from tests.chaos.processes import ROOT, Producers, environ
from tests.chaos.record_watcher import RecordWatcher
from tests.chaos.suite import NAMESPACE, report_exit_codes
from tests.chaos.waiting import is_idle
from tests.support.s3 import signed_s3

_LASTING: Final = "a"
_CUT_OFF: Final = "b"
_REDIS_PORT: Final = 16_379
_CLOCK_ERROR_S: Final = 3_600
_CLOCK_SOURCE: Final = Path(__file__).with_name("wrong_clock.c")
_MAX_CLOCK_ERROR_S: Final = 60.0
_BEFORE_CUT_S: Final = 20.0
_BETWEEN_CUTS_S: Final = 40.0
_STALL_S: Final = 300.0


class Host:
    """A host runs a worker, and starts it again when it ends, as systemd would."""

    def __init__(
        self, name: str, network: Network, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.exit_codes: list[int] = []
        """Of the workers that ended."""
        self.pids: set[int] = set()
        """Of all workers of this host."""
        self._environment = ["env", *(f"{key}={value}" for key, value in environment.items())]
        self._network, self._folder = network, folder
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    def refill(self) -> None:
        """Start a worker if the last one ended."""
        code = self._process.poll()
        if code is not None:
            self.exit_codes.append(code)
            self._process = self._start()

    def log(self) -> str:
        """Return the log of the worker that runs."""
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """Send SIGTERM to the worker, and return its exit code."""
        self._process.terminate()
        return self._process.wait(_STALL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._log = self._folder / f"{self.name}-{len(self.exit_codes)}.log"
        worker = (sys.executable, "-m", "imagefleet.worker")
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                self._network.command(self.name, *self._environment, *worker),
                cwd=ROOT,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(),
            )
        self.pids.add(process.pid)
        return process


class PartitionRun:
    """One run: the hosts, what they work on, and when which link was cut."""

    def __init__(
        self, network: Network, hosts: Sequence[Host], watcher: RecordWatcher, producers: Producers
    ) -> None:
        self._network, self._hosts = network, hosts
        self._watcher, self._producers = watcher, producers
        self.healed_at: dict[str, float] = {}
        """By kind of cut, when it was healed (Unix time)."""

    def cut_twice(self, seconds: float) -> None:
        """Cut the host off for `seconds`: silently, then with resets."""
        self._until(lambda: all("ready after" in host.log() for host in self._hosts))
        for kind, cut, before_s in (
            ("silence", self._network.cut, _BEFORE_CUT_S),
            ("resets", self._network.cut_with_resets, _BETWEEN_CUTS_S),
        ):
            self._pass(before_s)
            cut(_CUT_OFF)
            self._pass(seconds)
            self._network.heal(_CUT_OFF)
            self.healed_at[kind] = time.time()

    def finish(self) -> None:
        """Wait until the producers, all jobs, and what the hosts have in hand are done."""
        self._until(
            lambda: (
                self._producers.done()
                and not self._watcher.open
                and is_idle(self._watcher.lanes, {host.pid for host in self._hosts})
            )
        )

    def _pass(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= ends_at)

    def _until(self, done: Callable[[], bool]) -> None:
        """Keep the hosts running until `done`, or until no job has ended for `_STALL_S`."""
        left, changed_at = -1, time.monotonic()
        while not done():
            if left != len(self._watcher.open):
                left, changed_at = len(self._watcher.open), time.monotonic()
            if time.monotonic() > changed_at + _STALL_S:
                return
            for host in self._hosts:
                host.refill()
            self._watcher.poll()
            time.sleep(0.2)


def run(seed: int, jobs: int, seconds: float, folder: Path) -> AuditReport:
    """Run two hosts, cut one of them off twice for `seconds`, and return the audit."""
    report = AuditReport(title=f"{jobs:,} jobs, a host cut off twice for {seconds:.0f} s")
    with ExitStack() as stack:
        network = stack.enter_context(Network([_LASTING, _CUT_OFF]))
        server = stack.enter_context(LocalRedisServer(folder / "redis"))
        with connect(server.url) as client:
            client.config_set("protected-mode", "no")
            client.config_set("bind", SERVER)
            client.config_set("port", _REDIS_PORT)
        s3 = stack.enter_context(signed_s3(address=SERVER))
        environment = {
            **s3.credentials.environment(),
            "IMAGEFLEET_REDIS_URL": f"redis://{SERVER}:{_REDIS_PORT}",
            "IMAGEFLEET_NAMESPACE": NAMESPACE,
            "IMAGEFLEET_MODEL": "fake:seconds=0.4,capacity=4",
            "IMAGEFLEET_SHAPES": ",".join(f"{height}x{width}" for height, width in SIZES),
            "IMAGEFLEET_STORAGE_URL": s3.url(),
            "IMAGEFLEET_LEASE_S": "6",
        }
        busy_s = 2 * seconds + _BEFORE_CUT_S + 2 * _BETWEEN_CUTS_S
        planned = [
            without_callback(job)
            for job in draw_jobs(seed, jobs=jobs, seconds=busy_s, killers=0, callback_url="")
        ]
        began = time.time()
        clocks = {_LASTING: {}, _CUT_OFF: _wrong_clock(folder)}
        hosts = [
            stack.enter_context(Host(name, network, environment | clock, folder))
            for name, clock in clocks.items()
        ]
        producers = stack.enter_context(Producers(planned, environment, folder))
        watcher = RecordWatcher(
            Lanes.single(connect(server.url), NAMESPACE), [job.id for job in planned]
        )
        partition = PartitionRun(network, hosts, watcher, producers)
        partition.cut_twice(seconds)
        partition.finish()
        report_exit_codes(report, [host.stop() for host in hosts])
        statuses = watcher.read_all()
        audit_records(report, planned, producers.accepted(), statuses, watcher.first_terminal)
        with environ(s3.credentials.environment()):
            audit_images(report, {job.id: job for job in planned}, statuses, open_store(s3.url()))
        failed = [job_id for job_id, status in statuses.items() if status.state is State.FAILED]
        letters = list(DeadLetters(watcher.client, NAMESPACE).read())
        audit_keys(report, watcher.lanes, failed, letters)
        audit_hosts(report, hosts, partition.healed_at, statuses.values(), began)
    return report


def audit_hosts(
    report: AuditReport,
    hosts: Sequence[Host],
    healed_at: Mapping[str, float],
    statuses: Collection[JobStatus],
    began: float,
) -> None:
    """Check that the host worked again after each cut, and that its clock is in no record."""
    section = "hosts"
    for host in hosts:
        own = [status for status in statuses if _worker_pid(status) in host.pids]
        report.note(section, f"jobs that host {host.name} finished", len(own))
        report.note(section, f"exit codes of host {host.name}", host.exit_codes or "none ended")
        if host.name != _CUT_OFF:
            continue
        for kind, at in healed_at.items():
            after = [status for status in own if status.finished_at and status.finished_at > at]
            report.note(section, f"of them after the cut with {kind}", len(after))
            if not after:
                report.problems.append(f"host {host.name}: no job after the cut with {kind}")
    wrong = [
        f"{status.id}: {moment}"
        for status in statuses
        for moment in (status.submitted_at, status.started_at, status.finished_at)
        if moment is not None and not began - _MAX_CLOCK_ERROR_S <= moment <= time.time() + 1.0
    ]
    report.expect_none(section, "times by the wrong clock", wrong)


def _worker_pid(status: JobStatus) -> int | None:
    """Return the process id of the worker that finished a job. Its name is `host:pid:random`."""
    return int(status.result.worker.split(":")[1]) if status.result is not None else None


def _wrong_clock(folder: Path) -> dict[str, str]:
    """Return the variables that make the clock of a process wrong, but no duration."""
    compiler = shutil.which("cc")
    assert compiler is not None, "there is no C compiler; on Debian: apt install gcc"
    library = folder / "wrong_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, _CLOCK_SOURCE], check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_ERROR_S": str(_CLOCK_ERROR_S)}


@click.command()
@seed_option
@click.option("--jobs", default=300, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="How long each cut lasts.")
@click.option("--folder", type=Path, default=None, help="Keep logs and Redis's files here.")
@click.option("--out", type=Path, default=None, help="Write the table to this file too.")
def main(seed: int, jobs: int, seconds: float, folder: Path | None, out: Path | None) -> None:
    """Cut one of two hosts off the network, twice, and audit."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # S3 would log each request
    kept = folder or Path(tempfile.mkdtemp(prefix="partition-"))
    report = run(seed, jobs, seconds, kept)
    finish_run(report, kept, out, keep=folder is not None)


if __name__ == "__main__":
    main()
