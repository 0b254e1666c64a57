"""Measure whether the memory of a worker grows: many small jobs through one process.

`python -m benchmarks.worker_memory [--jobs 200000] [--trace]` starts its own Redis and one worker
with the fake engine, and prints every 10,000 jobs what the worker's process holds. With `--trace`
it also prints the lines of code whose memory grew between the second half's begin and its end, and
the types of objects that became more; the worker is slower then, and larger.

It does not show the memory of a model, of large images, or of an accelerator's runtime.
"""

import argparse
import json
import shutil
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.report import print_json
from benchmarks.traced_worker import FOLDER
from imagefleet import Client, Job
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import Worker, until

_PART: Final = 1_000
"""Jobs that are submitted at once. Two parts are in the fleet at a time."""
_SHOWN: Final = 15


class Traces:
    """Asks the worker what its memory holds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def take(self, name: str) -> None:
        """Let the worker write a trace, and wait for it."""
        wanted = self._folder / f"{name}.wanted"
        wanted.touch()
        until(lambda: not wanted.exists())

    def malloc(self, name: str) -> dict[str, int]:
        """Return the bytes that the C library has given out, and those that it keeps."""
        return dict(self._read(name)["malloc"])

    def print_growth(self, first: str, last: str) -> None:
        """Print what grew between two traces."""
        before, after = self._read(first)["types"], self._read(last)["types"]
        more = {kind: count - before.get(kind, 0) for kind, count in after.items()}
        print("\nobjects that became more:")
        for kind, count in sorted(more.items(), key=lambda each: -each[1])[:_SHOWN]:
            print(f"{count:+8,}  {kind}")
        snapshots = [self._folder / f"{name}.trace" for name in (first, last)]
        if not all(file.exists() for file in snapshots):
            return
        old, new = (tracemalloc.Snapshot.load(str(file)) for file in snapshots)
        differences = new.compare_to(old, "lineno")
        print(f"\nbytes of Python: {sum(each.size_diff for each in differences):+,}; lines:")
        for each in differences[:_SHOWN]:
            print(f"{each.size_diff:+10,} B {each.count_diff:+8,} blocks  {each.traceback}")

    def _read(self, name: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = json.loads((self._folder / f"{name}.json").read_text())
        return found


class Fleet:
    """Sends jobs through a worker, two parts at a time, and deletes their images."""

    def __init__(self, client: Client, store: Path, images: int) -> None:
        self._client, self._store, self._images = client, store, images
        self._parts: deque[list[Job]] = deque()
        self._submitted = 0

    def run(self, jobs: int) -> Iterator[int]:
        """Yield how many jobs have ended, after each part."""
        ended = 0
        while ended < jobs:
            while self._submitted < jobs and len(self._parts) < 2:
                self._submit()
            part = self._parts.popleft()
            for _ in self._client.as_completed(part, timeout=600):
                pass
            ended += len(part)
            for job in part:
                shutil.rmtree(self._store / "jobs" / job.id, ignore_errors=True)
            yield ended

    def _submit(self) -> None:
        prompts = [f"prompt {self._submitted + number}" for number in range(_PART)]
        self._parts.append(
            self._client.submit_many(
                prompts, num_inference_steps=1, num_images_per_prompt=self._images
            )
        )
        self._submitted += _PART


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=10_000, help="jobs between two lines")
    parser.add_argument("--images", type=int, default=1, help="images of a job")
    parser.add_argument("--trace", action="store_true", help="use tracemalloc")
    parser.add_argument(
        "--threads", type=int, help="IMAGEFLEET_POST_THREADS; by default that of workers"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="worker-memory-"))
    try:
        with LocalRedisServer(folder / "redis") as server:
            measure(server.url, folder, options)
    finally:
        shutil.rmtree(folder)


def measure(url: str, folder: Path, options: argparse.Namespace) -> None:
    """Run the jobs, and print what the worker holds."""
    traces = Traces(folder / "traces")
    settings = {
        "IMAGEFLEET_REDIS_URL": url,
        "IMAGEFLEET_MODEL": "fake:capacity=8",
        "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
        "IMAGEFLEET_RETENTION_S": "60",
        FOLDER: str(folder / "traces"),
        **({"PYTHONTRACEMALLOC": "1"} if options.trace else {}),
        **({"IMAGEFLEET_POST_THREADS": str(options.threads)} if options.threads else {}),
    }
    worker = Worker(folder, settings, ("-m", "benchmarks.traced_worker"))
    try:
        worker.await_log("ready after")
        with Client(url) as client:
            fleet = Fleet(client, folder / "store", options.images)
            rows = list(_watch(fleet, worker.process.pid, traces, options))
    finally:
        worker.terminate()
    middle, last = rows[len(rows) // 2 - 1], rows[-1]
    traces.print_growth(str(middle[0]), str(last[0]))
    figures = {f"rss_mb_after_{jobs}": round(mb, 1) for jobs, mb in (rows[0], middle, last)}
    print_json("worker_memory", {"jobs": options.jobs, "traced": options.trace, **figures})


def _watch(
    fleet: Fleet, pid: int, traces: Traces, options: argparse.Namespace
) -> Iterator[tuple[int, float]]:
    """Print a line every so many jobs. Yield the number of jobs and the MB of the process."""
    started = time.monotonic()
    print("    jobs  RSS MB  malloc in use  malloc free  threads  jobs/s")
    for ended in fleet.run(options.jobs):
        if ended % options.every == 0 or ended == _PART:
            traces.take(str(ended))
            malloc = {name: size / 1e6 for name, size in traces.malloc(str(ended)).items()}
            rss_mb = _status(pid, "VmRSS") * 1024 / 1e6
            print(
                f"{ended:8,} {rss_mb:7.1f} {malloc['in_use']:14.1f} {malloc['free']:12.1f}"
                f" {_status(pid, 'Threads'):8} {ended / (time.monotonic() - started):7.0f}",
                flush=True,
            )
            yield ended, rss_mb


def _status(pid: int, name: str) -> int:
    """Return a number of /proc/PID/status. Memory is in units of 1,024 bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


if __name__ == "__main__":
    main()
