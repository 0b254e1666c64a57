"""A dataset of the bundled model while everything that can die does: `make bulk-chaos`.

2,000 prompts on two local workers. Meanwhile one of the workers is killed with -9 every 10 s, Redis
is killed and started again once, and the command itself is killed and given again twice. Then the
dataset is verified, counted, and held byte for byte to one that nothing happened to.

A worker is killed when it has worked for 10 s. Where one starts within 10 s that is a kill every
10 s; where starts take longer, kills wait for them, or nothing would ever be painted.
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
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from shared.embedded import EmbeddedRedis
from tests.support.processes import ROOT, Worker

_WORKERS: Final = 2
_REDIS_DIES_AT: Final = 0.5
"""Of the pictures, as are the next two."""
_COMMAND_DIES_AT: Final = (0.25, 0.75)


@dataclass(kw_only=True)
class Fleet:
    """Two workers on a Redis of their own, and the command that wants the dataset."""

    folder: Path
    redis: EmbeddedRedis
    model: str
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

    def kill_one(self, after_s: float) -> bool:
        """A worker that has been at work for `after_s`, if there is one."""
        now = time.monotonic()
        for worker in self.workers:
            if worker not in self.ready and "ready after" in worker.output():
                self.ready[worker] = now
            if now - self.ready.get(worker, now) >= after_s:
                worker.kill()
                self.kills += 1
                return True
        return False

    def kill_redis(self) -> None:
        self.redis.kill()
        self.redis.start()
        self.redis_kills += 1

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "command.log").open("ab") as log:
            command = subprocess.Popen(
                [sys.executable, "-m", "producer", "bulk", *words],
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


def disturbed(fleet: Fleet, source: Path, destination: Path, every_s: float) -> float:
    """Make the dataset while everything dies. Seconds it took."""
    began = time.monotonic()
    command = fleet.order(source, destination)
    next_kill = began + every_s
    total = sum(1 for _ in source.open())
    command_dies = [share * total for share in _COMMAND_DIES_AT]
    redis_dies = [_REDIS_DIES_AT * total]
    while command.poll() is None:
        fleet.staff()
        time.sleep(0.5)
        made = kept(destination)
        if command_dies and made >= command_dies[0]:
            command_dies.pop(0)
            command.kill()
            command.wait()
            command = fleet.order(source, destination)
        if redis_dies and made >= redis_dies[0]:
            redis_dies.pop(0)
            fleet.kill_redis()
        if time.monotonic() >= next_kill and fleet.kill_one(every_s):
            next_kill = time.monotonic() + every_s
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
    return sum(len(_keys(archive)) for archive in destination.rglob("[0-9]*.tar"))


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
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--keep", type=Path, help="folder for everything; default: a temporary one")
    given = parser.parse_args()
    folder = (given.keep or Path(tempfile.mkdtemp(prefix="imagefleet-bulk-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "prompts.txt"
    source.write_text("".join(f"{prompt}\n" for prompt in prompts(given.count)))
    with EmbeddedRedis(folder / "redis") as server:
        fleet = Fleet(
            folder=folder,
            redis=server,
            model=given.model,
            steps=given.steps,
            shard_size=given.shard_size,
        )
        try:
            result = _run(fleet, source, given.count, given.kill_every)
        finally:
            fleet.leave()
    if given.keep is None:
        shutil.rmtree(folder)
    _show(result)
    bad = ("missing keys", "unplanned keys", "duplicate keys", "files that differ", "verify exit")
    sys.exit(any(result[name] for name in bad))


def _run(fleet: Fleet, source: Path, count: int, every_s: float) -> dict[str, float]:
    noisy, quiet = fleet.folder / "disturbed", fleet.folder / "undisturbed"
    seconds = disturbed(fleet, source, noisy, every_s)
    verified = fleet.command("verify", noisy.as_uri()).wait()
    kills, commands = fleet.kills, fleet.commands
    peaceful = in_peace(fleet, source, quiet)
    return {
        "prompts": count,
        "workers killed -9": kills,
        "Redis killed": fleet.redis_kills,
        "command killed": commands - 1,
        "seconds disturbed": round(seconds, 1),
        "seconds undisturbed": round(peaceful, 1),
        "verify exit": verified,
        **compare(noisy, quiet, count),
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
