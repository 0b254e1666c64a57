"""Tell a host on which everything fails from prompts that fail everywhere, with real workers.

`python -m benchmarks.blame` starts its own Redis and worker processes with the fake engine, and
prints a table and a JSON line for three cases:

    dead host     one host fails every batch, the known image of its health check too
    bad host      one host fails every batch but the known image
    bad prompts   all hosts are healthy; prompts that fail on any device stand in a row among others

It does not show real devices, or hosts that fail only now and then.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.report import print_json
from imagefleet import Client, Job
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.local_server import LocalRedisServer

_ROOT: Final = Path(__file__).parents[1]
_BAD_PROMPT: Final = "[fail]"
_STEPS: Final = 4


class _Fleet:
    """The worker processes of one case. The first one fails while `failing` exists."""

    def __init__(self, server: LocalRedisServer, folder: Path, options: argparse.Namespace) -> None:
        self._server, self._folder, self._options = server, folder, options
        self.failing = folder / "failing"
        self.namespace = f"blame-{time.monotonic_ns()}"
        self._logs: list[Path] = []

    @contextmanager
    def start(self, kind: str) -> Iterator[Client]:
        """Start the workers, wait until they are ready, and return a client."""
        with ExitStack() as stack:
            for number in range(self._options.hosts):
                stack.enter_context(self._worker(f",{kind}={self.failing}" if not number else ""))
            for log in self._logs:
                while "ready after" not in log.read_text():
                    time.sleep(0.1)
            yield stack.enter_context(Client(self._server.url, namespace=self.namespace))

    def quarantined(self) -> list[int]:
        """Return the numbers of the workers that were quarantined."""
        return [at for at, log in enumerate(self._logs) if "quarantined" in log.read_text()]

    @contextmanager
    def _worker(self, more: str) -> Iterator[None]:
        model = f"fake:seconds={self._options.batch_s / _STEPS},capacity={self._options.capacity}"
        environment = {
            **os.environ,
            "IMAGEFLEET_REDIS_URL": self._server.url,
            "IMAGEFLEET_NAMESPACE": self.namespace,
            "IMAGEFLEET_MODEL": model + more,
            "IMAGEFLEET_STORAGE_URL": "memory://",
            "IMAGEFLEET_LEASE_S": str(self._options.lease_s),
        }
        self._logs.append(self._folder / f"worker-{len(self._logs)}.log")
        with self._logs[-1].open("wb") as log:
            command = [sys.executable, "-m", "imagefleet.worker"]
            worker = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            worker.kill()
            worker.wait()


def _run(fleet: _Fleet, client: Client, prompts: Sequence[str]) -> Mapping[str, Any]:
    """Submit the prompts and wait for all ends. Return what came of them."""
    started = time.monotonic()
    out_after_s = None
    jobs = client.submit_many(list(prompts))
    while True:
        statuses = _statuses(client, jobs)
        if all(status.done for status in statuses):
            break
        if out_after_s is None and fleet.quarantined():
            out_after_s = round(time.monotonic() - started, 1)
        time.sleep(0.2)
    bad = [status for status in statuses if _BAD_PROMPT in status.request.prompt]
    good = [status for status in statuses if _BAD_PROMPT not in status.request.prompt]
    return {
        "jobs": len(statuses),
        "good jobs that failed": sum(status.error is not None for status in good),
        "bad prompts, by the code of their end": dict(Counter(map(_code, bad))),
        "failed attempts at good jobs": sum(len(status.failures) for status in good),
        "hosts quarantined": len(fleet.quarantined()),
        "first out after s": out_after_s,
        "seconds": round(time.monotonic() - started, 1),
    }


def _statuses(client: Client, jobs: Sequence[Job]) -> list[JobStatus]:
    found = client.lookup([job.id for job in jobs])
    return [status for status in found if isinstance(status, JobStatus)]


def _code(status: JobStatus) -> str:
    return "succeeded" if status.error is None else status.error.code


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, str, bool, list[str]]]:
    """Yield name, option of the fake engine, whether the first host fails, and prompts."""
    good = [f"good {number}" for number in range(options.jobs)]
    bad = [f"{number} {_BAD_PROMPT}" for number in range(options.bad)]
    half = len(good) // 2
    yield "dead host", "failing", True, good
    yield "bad host", "failing_jobs", True, good
    yield "bad prompts", "failing", False, [*good[:half], *bad, *good[half:]]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blame", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hosts", type=int, default=4, help="Worker processes. Default: 4.")
    parser.add_argument("--jobs", type=int, default=160, help="Good jobs. Default: 160.")
    parser.add_argument("--bad", type=int, default=40, help="Bad prompts in a row. Default: 40.")
    parser.add_argument("--capacity", type=int, default=8, help="Images a batch. Default: 8.")
    parser.add_argument("--batch-s", type=float, default=1.0, help="Seconds of a batch.")
    parser.add_argument("--lease-s", type=float, default=20.0, help="The lease. Default: 20.")
    parser.add_argument("--case", help="Run only this case.")
    return parser.parse_args()


def main() -> None:
    """Run the cases; print a table of each, and at the end the JSON line."""
    options = _parse_arguments()
    figures: dict[str, Any] = {"hosts": options.hosts, "batch_s": options.batch_s}
    for name, kind, failing, prompts in _cases(options):
        if options.case not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder, LocalRedisServer(Path(folder)) as server:
            fleet = _Fleet(server, Path(folder), options)
            with fleet.start(kind) as client:
                if failing:
                    fleet.failing.touch()
                figures[name] = _run(fleet, client, prompts)
        print(f"\n{name}")
        for what, value in figures[name].items():
            print(f"  {what:<40} {value}")
    print_json("blame", figures)


if __name__ == "__main__":
    main()
