"""A dataset of the bundled model while everything that can die does: `make bulk-chaos`.

2,000 prompts on two local workers, first in peace: that also puts the compiled programs on the
shelf, so that later workers start fast. Then the same dataset once more, elsewhere, while one of
the workers is killed with -9 every 10 s, Redis is killed and started again once, and the command
itself is killed and given again twice. It is verified, counted, and held to the first by its bytes.

Killed is the worker that has been at work longest. One that has not been for 5 s yet is spared: on
2 cores a start takes some 10 s, and if it took 20, every worker would die before its first batch.
The table says how far apart kills were. On CPU every worker has one device of 4 pictures: two
workers with 8 virtual devices each only keep each other from the 2 cores, and a large batch is much
to lose.
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
"""Of the pictures, as are the next two."""
_COMMAND_DIES_AT: Final = (0.25, 0.75)


@dataclass(kw_only=True)
class Fleet:
    """Two workers on a Redis of their own, and the command that wants the dataset."""

    folder: Path
    redis: LocalRedisServer
    model: str
    devices: int
    batch: int
    steps: int | None
    shard_size: int
    kills: int = 0
    commands: int = 0
    redis_kills: int = 0
    workers: list[Worker] = field(default_factory=list)
    given: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Commands."""
    ready: dict[Worker, float] = field(default_factory=dict)
    """Since when."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "IMAGEFLEET_REDIS_URL": self.redis.url,
            "IMAGEFLEET_MODEL": self.model,
            "IMAGEFLEET_DEVICES": str(self.devices),
            "IMAGEFLEET_PER_DEVICE_BATCH": str(self.batch),
            "IMAGEFLEET_CACHE_DIR": str(self.folder / "programs"),
            "IMAGEFLEET_STORAGE_URL": f"{self.folder.as_uri()}/jobs",
            "IMAGEFLEET_LEASE_S": "4",
            "IMAGEFLEET_BULK_CHECKPOINT_S": "2",
            "IMAGEFLEET_MAX_DELIVERIES": "6",
        }

    def staff(self) -> None:
        """Start workers in the places of dead ones."""
        self.workers = [each for each in self.workers if each.process.poll() is None]
        while len(self.workers) < _WORKERS:
            self.workers.append(Worker(self.folder / "logs", self.environment))

    def look(self) -> None:
        """Note who is at work."""
        for worker in self.workers:
            if worker not in self.ready and "ready after" in worker.output():
                self.ready[worker] = time.monotonic()

    def kill_one(self, at_work_s: float) -> bool:
        """The worker that has been at work longest, if for `at_work_s` at least."""
        began, worker = min(
            ((self.ready[each], each) for each in self.workers if each in self.ready),
            key=itemgetter(0),
            default=(float("inf"), None),
        )
        if worker is None or time.monotonic() - began < at_work_s:
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
        self.given.append(command)
        return command

    def order(self, prompts: Path, destination: Path) -> subprocess.Popen[bytes]:
        self.commands += 1
        steps = () if self.steps is None else ("--num-inference-steps", str(self.steps))
        size = ("--shard-size", str(self.shard_size))
        return self.command("run", str(prompts), destination.as_uri(), *size, *steps)

    def leave(self) -> None:
        for worker in self.workers:
            worker.kill()
        for command in self.given:
            command.kill()
            command.wait()


def prompts(count: int) -> list[str]:
    """Captions as the bundled model knows them, each one different while there are enough."""
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
class Trouble:
    """How bad it is. Seconds."""

    kill_every: float
    at_work: float
    """Before a worker may be killed."""
    limit: float


def disturbed(fleet: Fleet, source: Path, destination: Path, trouble: Trouble) -> float:
    """Make the dataset while everything dies. Seconds it took."""
    began = time.monotonic()
    command = fleet.order(source, destination)
    next_kill = began + trouble.kill_every
    total = sum(1 for _ in source.open())
    command_dies = [share * total for share in _COMMAND_DIES_AT]
    redis_dies = [_REDIS_DIES_AT * total]
    while command.poll() is None:
        fleet.staff()
        fleet.look()
        time.sleep(0.5)
        made = kept(destination)
        if time.monotonic() - began > trouble.limit:
            sys.exit(
                f"not done after {trouble.limit:.0f} s: {made} of {total} kept, {fleet.kills} kills"
            )
        if command_dies and made >= command_dies[0]:
            command_dies.pop(0)
            command.kill()
            command.wait()
            command = fleet.order(source, destination)
        if redis_dies and made >= redis_dies[0]:
            redis_dies.pop(0)
            fleet.kill_redis()
        if time.monotonic() >= next_kill and fleet.kill_one(trouble.at_work):
            next_kill = max(
                next_kill + trouble.kill_every, time.monotonic() + trouble.kill_every / 2
            )
            print(
                f"{time.monotonic() - began:6.0f} s  {made} kept, {fleet.kills} kills", flush=True
            )
    assert command.returncode == 0, (fleet.folder / "command.log").read_text()[-3000:]
    return time.monotonic() - began


def in_peace(fleet: Fleet, source: Path, destination: Path) -> float:
    """Make the same dataset with nothing in its way. Seconds it took."""
    began = time.monotonic()
    command = fleet.order(source, destination)
    while command.poll() is None:
        fleet.staff()
        time.sleep(0.5)
    assert command.returncode == 0, (fleet.folder / "command.log").read_text()[-3000:]
    return time.monotonic() - began


def kept(destination: Path) -> int:
    """Samples in finished shards and in parts, about."""
    archives = [path for path in files_below(destination) if path.match("[0-9]*.tar")]
    return sum(len(_keys(archive)) for archive in archives)


def _keys(archive: Path) -> list[str]:
    try:
        with tarfile.open(archive) as opened:
            return [name[: -len(".txt")] for name in opened.getnames() if name.endswith(".txt")]
    except (FileNotFoundError, tarfile.TarError):  # parts go when their shard is complete
        return []


def compare(disturbed: Path, peaceful: Path, count: int) -> dict[str, int]:
    """What is missing, doubled or different."""
    found: Counter[str] = Counter()
    for archive in disturbed.glob("[0-9]*.tar"):
        found.update(_keys(archive))
    expected = {f"{row:09d}-00" for row in range(count)}
    files = [
        path
        for pattern in ("[0-9]*.tar", "[0-9]*.jsonl", "[0-9]*.stats.json")
        for path in peaceful.glob(pattern)
    ]
    return {
        "missing keys": len(expected - found.keys()),
        "unplanned keys": len(found.keys() - expected),
        "duplicate keys": sum(times > 1 for times in found.values()),
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
    parser.add_argument("--at-work", type=float, default=5.0, help="seconds before a worker dies")
    parser.add_argument("--limit", type=float, default=3_600.0, help="seconds of disturbance")
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--devices", type=int, default=1, help="of each worker")
    parser.add_argument("--batch", type=int, default=4, help="pictures a device paints at a time")
    parser.add_argument("--keep", type=Path, help="folder for everything; default: a temporary one")
    given = parser.parse_args()
    folder = (given.keep or Path(tempfile.mkdtemp(prefix="imagefleet-bulk-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "prompts.txt"
    source.write_text("".join(f"{prompt}\n" for prompt in prompts(given.count)))
    with LocalRedisServer(folder / "redis") as server:
        fleet = Fleet(
            folder=folder,
            redis=server,
            model=given.model,
            devices=given.devices,
            batch=given.batch,
            steps=given.steps,
            shard_size=given.shard_size,
        )
        try:
            result = _run(fleet, source, given)
        finally:
            fleet.leave()
    if given.keep is None:
        shutil.rmtree(folder)
    _show(result)
    bad = ("missing keys", "unplanned keys", "duplicate keys", "files that differ", "verify exit")
    sys.exit(any(result[name] for name in bad))


def _run(fleet: Fleet, source: Path, given: argparse.Namespace) -> dict[str, float]:
    noisy, quiet = fleet.folder / "disturbed", fleet.folder / "undisturbed"
    trouble = Trouble(kill_every=given.kill_every, at_work=given.at_work, limit=given.limit)
    peaceful = in_peace(fleet, source, quiet)
    print(f"{peaceful:.0f} s in peace", flush=True)
    seconds = disturbed(fleet, source, noisy, trouble)
    verified = fleet.command("verify", noisy.as_uri()).wait()
    return {
        "prompts": given.count,
        "workers killed -9": fleet.kills,
        "seconds between kills": round(seconds / max(1, fleet.kills), 1),
        "Redis killed": fleet.redis_kills,
        "command killed": fleet.commands - 2,
        "seconds disturbed": round(seconds, 1),
        "seconds undisturbed": round(peaceful, 1),
        "verify exit": verified,
        **compare(noisy, quiet, given.count),
    }


def _show(result: dict[str, float]) -> None:
    table = Table(title="a dataset while everything dies")
    table.add_column("what")
    table.add_column("", justify="right")
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)
    print(json.dumps({"benchmark": "bulk-chaos", **result}))


if __name__ == "__main__":
    main()
