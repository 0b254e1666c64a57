"""Fault injection for datasets: `make bulk-chaos`.

The command makes a dataset of 2,000 prompts with the bundled model and two local workers, first
without faults. That run also fills the executable cache, so that later workers start fast. Then it
makes the same dataset in another folder, while one worker is killed every 10 s, Redis is killed and
restarted once, and the bulk command is killed and started again twice. The result is verified, its
samples are counted, and its files are compared with the first run's, byte by byte.

The worker that has been ready longest is killed, but none that has been ready for less than 5 s: on
2 cores a start takes about 10 s, and if it took 20, every worker would die before its first batch.
The table says how far apart the kills were. On a CPU every worker has one device with 4 slots: two
workers with 8 virtual devices each only compete for the 2 cores, and a large batch loses much work.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.files import files_below
from tests.support.processes import ROOT, Worker

_WORKERS: Final = 2
_REDIS_DIES_AT: Final = 0.5
"""The share of stored images at which Redis is killed."""
_COMMAND_DIES_AT: Final = (0.25, 0.75)
"""The shares of stored images at which the bulk command is killed."""


@dataclass(kw_only=True)
class Fleet:
    """Two workers, their Redis, and the bulk command that makes the dataset."""

    folder: Path
    redis: LocalRedisServer
    model: str
    devices: int
    batch: int
    batching: str
    steps: int | None
    shard_size: int
    kills: int = 0
    commands: int = 0
    redis_kills: int = 0
    workers: list[Worker] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The bulk commands that were started."""
    ready_since: dict[Worker, float] = field(default_factory=dict)
    """When each worker became ready, on the monotonic clock."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "IMAGEFLEET_REDIS_URL": self.redis.url,
            "IMAGEFLEET_MODEL": self.model,
            "IMAGEFLEET_DEVICES": str(self.devices),
            "IMAGEFLEET_PER_DEVICE_BATCH": str(self.batch),
            "IMAGEFLEET_BATCHING": self.batching,
            "IMAGEFLEET_CACHE_DIR": str(self.folder / "programs"),
            "IMAGEFLEET_STORAGE_URL": f"{self.folder.as_uri()}/jobs",
            "IMAGEFLEET_LEASE_S": "4",
            "IMAGEFLEET_BULK_CHECKPOINT_S": "2",
            "IMAGEFLEET_MAX_DELIVERIES": "6",
        }

    def start_missing_workers(self) -> None:
        """Replace workers that ended."""
        self.workers = [each for each in self.workers if each.process.poll() is None]
        while len(self.workers) < _WORKERS:
            self.workers.append(Worker(self.folder / "logs", self.environment))

    def note_ready_workers(self) -> None:
        """Note when workers became ready."""
        for worker in self.workers:
            if worker not in self.ready_since and "ready after" in worker.output():
                self.ready_since[worker] = time.monotonic()

    def kill_oldest(self, min_ready_s: float) -> bool:
        """Kill the worker that has been ready longest, if for `min_ready_s` at least.

        Return whether one was killed.
        """
        began, worker = min(
            ((self.ready_since[each], each) for each in self.workers if each in self.ready_since),
            key=itemgetter(0),
            default=(float("inf"), None),
        )
        if worker is None or time.monotonic() - began < min_ready_s:
            return False
        worker.kill()
        self.kills += 1
        return True

    def kill_redis(self) -> None:
        self.redis.kill()
        self.redis.start()
        self.redis_kills += 1

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "command.log").open("ab") as log:
            command = subprocess.Popen(
                [sys.executable, "-m", "imagefleet.producer", "bulk", *words],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(command)
        return command

    def start_run(self, prompts: Path, destination: Path) -> subprocess.Popen[bytes]:
        self.commands += 1
        steps = () if self.steps is None else ("--num-inference-steps", str(self.steps))
        size = ("--shard-size", str(self.shard_size))
        return self.command("run", str(prompts), destination.as_uri(), *size, *steps)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for command in self.processes:
            command.kill()
            command.wait()


def prompts(count: int) -> list[str]:
    """Return captions that the bundled model was trained on. They repeat after all were used."""
    words = itertools.product(
        ("small", "large"),
        ("red", "green", "blue", "yellow", "purple", "orange"),
        ("circle", "square", "triangle"),
        ("left", "right"),
        ("white", "black", "gray"),
    )
    captions = [f"a {s} {c} {o} on the {p} on a {b} background" for s, c, o, p, b in words]
    return list(itertools.islice(itertools.cycle(captions), count))


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The times of the faults, in seconds."""

    kill_every: float
    min_ready: float
    """How long a worker must have been ready before it may be killed."""
    limit: float


def make_with_faults(fleet: Fleet, source: Path, destination: Path, faults: Faults) -> float:
    """Make the dataset under faults, and return the seconds it took."""
    began = time.monotonic()
    command = fleet.start_run(source, destination)
    next_kill = began + faults.kill_every
    total = sum(1 for _ in source.open())
    command_dies = [share * total for share in _COMMAND_DIES_AT]
    redis_dies = [_REDIS_DIES_AT * total]
    while command.poll() is None:
        fleet.start_missing_workers()
        fleet.note_ready_workers()
        time.sleep(0.5)
        made = count_stored_samples(destination)
        if time.monotonic() - began > faults.limit:
            sys.exit(
                f"after {faults.limit:.0f} s {made} of {total} are stored; {fleet.kills} kills"
            )
        if command_dies and made >= command_dies[0]:
            command_dies.pop(0)
            command.kill()
            command.wait()
            command = fleet.start_run(source, destination)
        if redis_dies and made >= redis_dies[0]:
            redis_dies.pop(0)
            fleet.kill_redis()
        if time.monotonic() >= next_kill and fleet.kill_oldest(faults.min_ready):
            next_kill = max(next_kill + faults.kill_every, time.monotonic() + faults.kill_every / 2)
            print(
                f"{time.monotonic() - began:6.0f} s  {made} stored, {fleet.kills} kills", flush=True
            )
    assert command.returncode == 0, (fleet.folder / "command.log").read_text()[-3000:]
    return time.monotonic() - began


def make_without_faults(fleet: Fleet, source: Path, destination: Path) -> float:
    """Make the dataset without faults, and return the seconds it took."""
    began = time.monotonic()
    command = fleet.start_run(source, destination)
    while command.poll() is None:
        fleet.start_missing_workers()
        time.sleep(0.5)
    assert command.returncode == 0, (fleet.folder / "command.log").read_text()[-3000:]
    return time.monotonic() - began


def count_stored_samples(destination: Path) -> int:
    """Return about how many samples are in shards and shard checkpoints."""
    archives = [path for path in files_below(destination) if path.match("[0-9]*.tar")]
    return sum(len(_keys(archive)) for archive in archives)


def _keys(archive: Path) -> list[str]:
    try:
        with tarfile.open(archive) as opened:
            return [name[: -len(".txt")] for name in opened.getnames() if name.endswith(".txt")]
    except (FileNotFoundError, tarfile.TarError):  # checkpoints go when their shard is complete
        return []


def compare(disturbed: Path, undisturbed: Path, count: int) -> dict[str, int]:
    """Count the samples that are missing, unplanned or duplicated, and the files that differ."""
    counts: Counter[str] = Counter()
    for archive in disturbed.glob("[0-9]*.tar"):
        counts.update(_keys(archive))
    expected = {f"{row:09d}-00" for row in range(count)}
    files = [
        path
        for pattern in ("[0-9]*.tar", "[0-9]*.jsonl", "[0-9]*.stats.json")
        for path in undisturbed.glob(pattern)
    ]
    return {
        "missing keys": len(expected - counts.keys()),
        "unplanned keys": len(counts.keys() - expected),
        "duplicate keys": sum(times > 1 for times in counts.values()),
        "files compared": len(files),
        "files that differ": sum(
            not (disturbed / path.name).exists()
            or (disturbed / path.name).read_bytes() != path.read_bytes()
            for path in files
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--shard-size", type=int, default=100)
    parser.add_argument("--steps", type=int, help="denoising steps; default: the model's")
    parser.add_argument("--kill-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--min-ready", type=float, default=5.0, help="seconds before a kill")
    parser.add_argument("--limit", type=float, default=3_600.0, help="seconds of disturbance")
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--devices", type=int, default=1, help="of each worker")
    parser.add_argument("--batch", type=int, default=4, help="slots per device")
    parser.add_argument("--batching", choices=("static", "continuous"), default="static")
    parser.add_argument("--keep", type=Path, help="folder for everything; default: a temporary one")
    options = parser.parse_args()
    folder = (options.keep or Path(tempfile.mkdtemp(prefix="imagefleet-bulk-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "prompts.txt"
    source.write_text("".join(f"{prompt}\n" for prompt in prompts(options.count)))
    with LocalRedisServer(folder / "redis") as server:
        fleet = Fleet(
            folder=folder,
            redis=server,
            model=options.model,
            devices=options.devices,
            batch=options.batch,
            batching=options.batching,
            steps=options.steps,
            shard_size=options.shard_size,
        )
        try:
            result = _run(fleet, source, options)
        finally:
            fleet.stop()
    if options.keep is None:
        shutil.rmtree(folder)
    _show(result)
    bad = ("missing keys", "unplanned keys", "duplicate keys", "files that differ", "verify exit")
    sys.exit(any(result[name] for name in bad))


def _run(fleet: Fleet, source: Path, options: argparse.Namespace) -> dict[str, float | str]:
    noisy, quiet = fleet.folder / "disturbed", fleet.folder / "undisturbed"
    faults = Faults(kill_every=options.kill_every, min_ready=options.min_ready, limit=options.limit)
    undisturbed = make_without_faults(fleet, source, quiet)
    print(f"{undisturbed:.0f} s without faults", flush=True)
    seconds = make_with_faults(fleet, source, noisy, faults)
    verified = fleet.command("verify", noisy.as_uri()).wait()
    return {
        "batching": options.batching,
        "prompts": options.count,
        "workers killed -9": fleet.kills,
        "seconds between kills": round(seconds / max(1, fleet.kills), 1),
        "Redis killed": fleet.redis_kills,
        "command killed": fleet.commands - 2,
        "seconds disturbed": round(seconds, 1),
        "seconds undisturbed": round(undisturbed, 1),
        "verify exit": verified,
        **compare(noisy, quiet, options.count),
    }


def _show(result: dict[str, float | str]) -> None:
    table = Table(title="a dataset made under faults")
    table.add_column("what")
    table.add_column("", justify="right")
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)
    print(json.dumps({"benchmark": "bulk-chaos", **result}))


if __name__ == "__main__":
    main()
