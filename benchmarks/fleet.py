"""Measure what a fleet of many hosts asks of one Redis, without its devices.

`python -m benchmarks.fleet --hosts 1 8 64` starts its own Redis (AOF, `appendfsync always`) and
simulates hosts in two processes: a worker's own claims, attempts, progress, results, heartbeats
and searches, of batches that take as long as on a TPU host, 8 images in 7 s with 50 steps. It
reports the share of linear that was reached, how long a claim takes, and the CPU time of Redis per
image, from which follow the images per second that fill one core.

`--stretch 10` makes everything that takes time take ten times longer: 1,000 hosts then ask as much
per image and as little per second as 100, so that this machine can play them. `--real` puts one
real worker process beside them, whose commands per image show whether the simulation is true, and
`--stock` a worker of plain Celery with its own Redis transport, the peer.

`--redis-share 0.05` gives Redis a twentieth of a core, so that fewer hosts than would fill a whole
one show what happens when it is full.

`--masters 4` lets the hosts work on eight lanes of a cluster of four masters.

It does not show networks between hosts, and Redis shares the cores of this machine with all hosts:
see `late`, by which the simulated hosts act too late.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks.report import print_json
from benchmarks.simulation.fleet import IMAGES_PER_S, NAMESPACE, Run, simulate_fleet, submit
from benchmarks.simulation.real_workers import imagefleet_worker, stock_worker, submit_stock
from benchmarks.simulation.redis_load import RedisLoad
from benchmarks.simulation.servers import Servers, started
from benchmarks.simulation.worker import BATCH_S, CAPACITY, STEPS
from imagefleet.shared.redis_client.connection import connect

SHOWN_COMMANDS: Final = 12
STOCK_THREADS: Final = 64
START_S: Final = 120.0
"""Seconds within which a worker must have started."""

Figures = dict[str, Any]
Measure = Callable[[Servers, Path], Figures]


def measure_real(server: Servers, folder: Path, seconds: float) -> Figures:
    """Measure one real worker process, which has a fake engine that is as fast as a host."""
    client = connect(server.url)
    with imagefleet_worker(server.url, folder, CAPACITY, BATCH_S / STEPS):
        _wait_for(lambda: client.exists(f"{NAMESPACE}:catalogue"))
        submit(server.url, math.ceil(IMAGES_PER_S * (seconds + 4 * BATCH_S)))
        time.sleep(2 * BATCH_S)
        return _measure_ends(client, seconds, lambda: _succeeded(client))


def measure_stock(server: Servers, folder: Path, seconds: float) -> Figures:
    """Measure a worker of plain Celery, whose threads sleep as long as a batch takes."""
    client = connect(server.url)
    with stock_worker(server.url, folder, STOCK_THREADS, BATCH_S):
        submit_stock(server.url, math.ceil(STOCK_THREADS / BATCH_S * (seconds + 4 * BATCH_S)))
        _wait_for(lambda: client.dbsize() > STOCK_THREADS)
        time.sleep(BATCH_S)
        return _measure_ends(client, seconds, lambda: _stored_results(client))


def _measure_ends(client: redis.Redis, seconds: float, ends: Callable[[], int]) -> Figures:
    load, before = RedisLoad(client), ends()
    load.since_last()
    time.sleep(seconds)
    used = load.since_last()
    images = ends() - before
    return {
        "images_per_s": images / seconds,
        "redis_ms_per_image": 1e3 * used.cpu_s / images,
        "connections": client.info("clients")["connected_clients"],
        "commands_per_image": used.calls_by_command(images),
    }


def _succeeded(client: redis.Redis) -> int:
    return int(client.hget(f"{NAMESPACE}:ends", "succeeded") or 0)


def _stored_results(client: redis.Redis) -> int:
    return sum(1 for _ in client.scan_iter("celery-task-meta-*", count=1000))


def _wait_for(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + START_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the worker did not begin within {START_S:g} s")
        time.sleep(0.2)


def main() -> None:
    options = _parser().parse_args()
    figures: dict[str, Figures] = {}
    print("| hosts | images/s | of linear | claim ms p50, p99 | late ms p50, p99 ", end="")
    print("| Redis ms an image | Redis cores | images/s of a full core |")
    print("|---|---|---|---|---|---|---|---|")
    for name, measured in _measures(options).items():
        masters = options.masters if name.isdecimal() else 0
        with (
            tempfile.TemporaryDirectory() as folder,
            started(Path(folder), masters, options.appendfsync) as servers,
        ):
            figures[name] = measured(servers, Path(folder))
        print(_row(name, figures[name]), flush=True)
    if options.commands:
        for name, got in figures.items():
            shown = list(got["commands_per_image"].items())[:SHOWN_COMMANDS]
            print(f"{name}: " + ", ".join(f"{command} {calls:.2f}" for command, calls in shown))
    print_json("fleet", {name: _rounded(got) for name, got in figures.items()})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=21.0)
    parser.add_argument("--stretch", type=float, default=1.0)
    parser.add_argument("--redis-share", type=float, default=1.0, help="of one core, each server")
    parser.add_argument("--masters", type=int, default=0, help="of a cluster; 0: one server")
    parser.add_argument("--appendfsync", choices=["always", "everysec", "no"], default="always")
    parser.add_argument("--callbacks", action="store_true", help="each job has a callback")
    parser.add_argument("--real", action="store_true", help="measure a real worker, too")
    parser.add_argument("--stock", action="store_true", help="measure plain Celery, too")
    parser.add_argument("--commands", action="store_true", help="show the commands per image")
    return parser


def _measures(options: argparse.Namespace) -> dict[str, Measure]:
    """Return what is to be measured, by the name of its row."""

    def simulated(hosts: int) -> Measure:
        run = Run(
            hosts=hosts,
            fleet=hosts,
            seconds=options.seconds,
            stretch=options.stretch,
            callbacks=options.callbacks,
            redis_share=options.redis_share,
        )
        return lambda servers, _: simulate_fleet(servers, run)

    measures: dict[str, Measure] = {}
    if options.stock:
        measures["plain Celery"] = partial(measure_stock, seconds=options.seconds)
    if options.real:
        measures["a real worker"] = partial(measure_real, seconds=options.seconds)
    return measures | {str(hosts): simulated(hosts) for hosts in options.hosts}


def _row(name: str, got: Figures) -> str:
    def shown(digits: int, *figures: str) -> str:
        return ", ".join(f"{got.get(each, math.nan):.{digits}f}" for each in figures)

    columns = [
        name,
        shown(1, "images_per_s"),
        shown(3, "of_linear"),
        shown(1, "claim_ms_p50", "claim_ms_p99"),
        shown(0, "late_ms_p50", "late_ms_p99"),
        shown(3, "redis_ms_per_image"),
        shown(3, "redis_cores"),
        f"{1e3 / got['redis_ms_per_image']:.0f}",
    ]
    return f"| {' | '.join(columns)} |"


def _rounded(figures: Figures) -> Figures:
    return {
        name: {key: round(each, 2) for key, each in value.items()}
        if isinstance(value, dict)
        else round(value, 4)
        for name, value in figures.items()
    }


if __name__ == "__main__":
    main()
