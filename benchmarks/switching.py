"""Let one worker switch between two models many times, and look for what grows.

`python -m benchmarks.switching [--switches 50]`: the bundled model and a copy of it under another
name, and one job for each in turn. Of each switch it measures the time from the submission to the
result, the peak memory of the worker process, memory and open files of the process above it, and
the programs on disk. It fails if a job has another image than the first of its model, if a program
was compiled after the first pass, or if more than one worker process is left.

It does not show the memory of an accelerator, which the process that ends frees.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import print_json
from imagefleet import Client
from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.redis_client.local_server import LocalRedisServer

_BUNDLED = Path(__file__).parents[1] / "worker/bundled/shapes"
_TIMEOUT_S = 600


class Switch(NamedTuple):
    """What was measured of one switch."""

    seconds: float
    worker_mb: float
    """Peak of the worker process that made the job."""
    parent_mb: float
    parent_files: int
    programs: int
    """Files of compiled programs on disk."""
    pixels: str
    """SHA-256 of the pixels of the image."""


def main() -> None:
    """Run the switches and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--switches", type=int, default=50)
    count = parser.parse_args().switches
    with tempfile.TemporaryDirectory() as folder:
        switches = measure(Path(folder), count)
    print("| switches | seconds, median | worker MB, peak | parent MB | parent files | programs |")
    print("|---:|---:|---:|---:|---:|---:|")
    for first in range(0, count, 10):
        part = switches[first : first + 10]
        seconds = statistics.median(each.seconds for each in part)
        largest = [max(column) for column in list(zip(*part, strict=True))[1:5]]
        sizes = f"{largest[0]:.0f} | {largest[1]:.1f} | {largest[2]} | {largest[3]}"
        print(f"| {first + 1} to {first + len(part)} | {seconds:.1f} | {sizes} |")
    for model in range(2):
        assert len({each.pixels for each in switches[model::2]}) == 1, "another image"
    assert len({each.programs for each in switches}) == 1, "a program was compiled again"
    growth_mb = switches[-1].parent_mb - switches[0].parent_mb
    print_json(
        "switching",
        {
            "switches": count,
            "seconds_median": round(statistics.median(each.seconds for each in switches), 2),
            "worker_mb_first": round(max(each.worker_mb for each in switches[:2])),
            "worker_mb_last": round(max(each.worker_mb for each in switches[-2:])),
            "parent_mb_growth": round(growth_mb, 2),
        },
    )


def measure(folder: Path, count: int) -> list[Switch]:
    """Run Redis and a worker with both models in `folder`; return what each switch took."""
    second = folder / "second"
    shutil.copytree(_BUNDLED, second)
    with LocalRedisServer(folder / "redis") as server, Client(server.url) as client:
        worker = _start_worker(folder, server.url, second)
        try:
            while client.offers().keys() < {"shapes", "second"}:
                assert worker.poll() is None, (folder / "worker.log").read_text()[-2000:]
                time.sleep(0.5)
            return [
                _switch(client, worker.pid, ("second", "shapes")[number % 2], folder)
                for number in range(count)
            ]
        finally:
            worker.terminate()
            worker.wait()


def _start_worker(folder: Path, redis_url: str, second: Path) -> "subprocess.Popen[bytes]":
    settings = {
        "IMAGEFLEET_REDIS_URL": redis_url,
        "IMAGEFLEET_MODELS": f"shapes {second}",
        "IMAGEFLEET_MODEL_MIN_STAY_S": "0",
        "IMAGEFLEET_MODEL_MAX_WAIT_S": "0",
        "IMAGEFLEET_DEVICES": "1",
        "IMAGEFLEET_CACHE_DIR": str(folder / "cache"),
        "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
    }
    with (folder / "worker.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "imagefleet.worker"],
            env={**os.environ, **settings},
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
        )


def _switch(client: Client, parent: int, model: str, folder: Path) -> Switch:
    """Submit a job for the model that is not loaded, and wait for it."""
    began = time.monotonic()
    result = client.submit("a red star", seed=1, model=model, num_inference_steps=2).result(
        timeout=_TIMEOUT_S
    )
    seconds = time.monotonic() - began
    assert result.model == model, result
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    [worker] = children
    assert worker == result.worker.split(":")[1], "a worker process is left"
    switch = Switch(
        seconds=seconds,
        worker_mb=_memory_mb(worker, "VmHWM"),
        parent_mb=_memory_mb(str(parent), "VmRSS"),
        parent_files=len(list(Path(f"/proc/{parent}/fd").iterdir())),
        programs=sum(path.is_file() for path in (folder / "cache/executables").rglob("*")),
        pixels=result.images[0].pixel_sha256 or "",
    )
    print(f"{model}: {switch}", file=sys.stderr, flush=True)
    return switch


def _memory_mb(pid: str, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise AssertionError(f"{field} is not in the status of {pid}")


if __name__ == "__main__":
    main()
