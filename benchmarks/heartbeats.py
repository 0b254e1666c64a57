"""Measure how long living workers are silent while other processes want their cores.

`python -m benchmarks.heartbeats` starts its own Redis and two workers with the fake engine under
load, and beside them 0, 2 and 8 busy processes for each core. It takes about four minutes. A worker
renews its lease each quarter of it; one that is silent for a whole lease is taken for dead, and its
jobs are computed again. The table compares the longest silence with the default lease, and with the
20 s that were the default before.

It does not show a busy Redis, a slow network, or threads that hold Python's lock for seconds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.recovery import Worker, killing_at_exit
from benchmarks.report import print_json
from imagefleet import Client
from imagefleet.shared.jobs.redis_keys import leases_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.settings.worker_settings import WorkerSettings

LEASE_S = float(WorkerSettings.model_fields["lease_s"].default)
FORMER_LEASE_S = 20.0
WORKERS = 2
BATCH_S = 0.4
BUSY_PER_CORE = (0, 2, 8)
POLL_S = 0.02


def silences(server: LocalRedisServer, folder: Path, busy: int, seconds: float) -> dict[str, float]:
    """Return the seconds between two renewals of a worker, beside `busy` other processes."""
    namespace = f"busy{busy}"
    client = Client(server.url, namespace=namespace)
    found: list[float] = []
    lost = 0
    with ExitStack() as stack:
        workers = [
            Worker(server, folder, namespace, batch_s=BATCH_S, lease_s=LEASE_S)
            for _ in range(WORKERS)
        ]
        stack.enter_context(killing_at_exit(workers))
        for worker in workers:
            worker.await_ready()
        for _ in range(busy):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.kill)
        stopped = threading.Event()
        producer = threading.Thread(target=_keep_busy, args=(client, stopped), daemon=True)
        producer.start()
        found, lost = _watch(server, namespace, seconds)
        stopped.set()
        producer.join()
    return {
        "renewals": len(found),
        "median_s": statistics.median(found),
        "longest_s": max(found),
        "longest_of_lease": max(found) / LEASE_S,
        "longest_of_former_lease": max(found) / FORMER_LEASE_S,
        "leases_lost": lost,
    }


def _keep_busy(client: Client, stopped: threading.Event) -> None:
    while not stopped.is_set():
        for _ in client.as_completed(client.submit_many(["p"] * 64), timeout=600):
            pass


def _watch(server: LocalRedisServer, namespace: str, seconds: float) -> tuple[list[float], int]:
    """Return the seconds between the renewals that Redis saw, and how many leases ended."""
    ends: dict[str, float] = {}
    renewed_at: dict[str, float] = {}
    gaps: dict[str, list[float]] = defaultdict(list)
    lost = 0
    deadline = time.monotonic() + seconds
    with connect(server.url) as redis:
        while time.monotonic() < deadline:
            now = time.monotonic()
            current = dict(redis.zrange(leases_key(namespace), 0, -1, withscores=True))
            lost += len(ends.keys() - current.keys())
            for worker, ends_at in current.items():
                if ends.get(worker) != ends_at:
                    if worker in renewed_at:
                        gaps[worker].append(now - renewed_at[worker])
                    renewed_at[worker] = now
            ends = current
            time.sleep(POLL_S)
    now = time.monotonic()
    return [
        *(gap for found in gaps.values() for gap in found),
        *(now - at for at in renewed_at.values()),
    ], lost


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number of processes")
    seconds = parser.parse_args().seconds
    cores = os.cpu_count() or 1
    numbers: dict[str, float] = {"cores": cores, "lease_s": LEASE_S}
    with tempfile.TemporaryDirectory() as name, LocalRedisServer(Path(name) / "redis") as server:
        for per_core in BUSY_PER_CORE:
            figures = silences(server, Path(name), per_core * cores, seconds)
            for figure, value in figures.items():
                print(f"{per_core * cores:3} busy processes  {figure:26} {value:8.2f}")
                numbers[f"{figure}_busy_{per_core}_per_core"] = round(value, 3)
    print_json("heartbeats", numbers)


if __name__ == "__main__":
    main()
