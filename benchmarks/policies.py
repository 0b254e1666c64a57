"""Simulate the batching policies of a worker: whole batches against slots that refill.

`python -m benchmarks.policies [--charts docs]` replays arrival logs through the worker's own
scheduling code: the claims and turns of the scripts in a real Redis, which it starts, and the
choice of slots. Only the devices are simulated, with the compiler's estimates of Stable Diffusion
1.4 on v5e-8 (docs/tpu.md). Compared are `static`; `lockstep`, continuous batching with one program
over all devices, which decodes 1 or up to 8 finished images at a time; and `streams`, continuous
batching with a program of its own on each device.

It does not show host work, uploads, or how well the estimates fit a TPU.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

from benchmarks.report import print_json
from benchmarks.simulation.arrivals import LARGE, SMALL, Mix, poisson
from benchmarks.simulation.chart import line_chart
from benchmarks.simulation.hosts import ContinuousHost, DeviceTimes, simulate_static
from benchmarks.simulation.queues import SimulatedJob, SimulatedQueues
from imagefleet.shared.redis_client.local_server import LocalRedisServer

JOBS = 600
SEED = 17
LOADS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
MIXED, EQUAL, ONE_TENANT = Mix(), Mix(min_steps=30, max_steps=30), Mix(tenants=1)
SATURATED = {
    "equal steps, 8 tenants": (EQUAL, DeviceTimes()),
    "10-50 steps, 8 tenants": (MIXED, DeviceTimes()),
    "10-50 steps, 1 tenant": (ONE_TENANT, DeviceTimes()),
    "10-50 steps, 8 tenants, 4 a device": (MIXED, DeviceTimes(per_device_batch=4)),
    "10-50 steps, 1 tenant, 4 a device": (ONE_TENANT, DeviceTimes(per_device_batch=4)),
    "10-50 steps, 2 shapes": (Mix(shapes=(SMALL, LARGE)), DeviceTimes()),
    "10-50 steps, 2 shapes, 4 a device": (
        Mix(shapes=(SMALL, LARGE)),
        DeviceTimes(per_device_batch=4),
    ),
}

Policy = Callable[[SimulatedQueues, DeviceTimes], None]
POLICIES: Mapping[str, Policy] = {
    "static": simulate_static,
    "lockstep, 1": lambda q, t: ContinuousHost(q, t, streams=False).run(),
    "lockstep, 8": lambda q, t: ContinuousHost(q, t, streams=False, hold=8).run(),
    "streams": lambda q, t: ContinuousHost(q, t, streams=True).run(),
}
Figures = dict[str, float]


class Simulation:
    """Runs one policy after the other, each in a namespace of its own."""

    def __init__(self, server: LocalRedisServer) -> None:
        self._server = server
        self._numbers = count()

    def run(
        self, policy: str, mix: Mix, times: DeviceTimes, load: float, jobs: int = JOBS
    ) -> Figures:
        """Run one log. `load` is the offered load, a share of the ideal rate; infinity lets all
        jobs wait."""
        shape = SMALL
        rate = load * times.ideal_rate(mix.mean_steps, shape)
        log = poisson(mix, rate, jobs, SEED)
        queues = SimulatedQueues(self._server, f"sim{next(self._numbers)}", log)
        POLICIES[policy](queues, times)
        assert len(queues.jobs) == len(log), f"{policy}: {len(queues.jobs)} of {len(log)} jobs"
        return _figures(queues.jobs, times)


def _figures(jobs: list[SimulatedJob], times: DeviceTimes) -> Figures:
    first = min(job.arrival.time_s for job in jobs)
    seconds = max(job.finished_s for job in jobs) - first
    latencies = sorted(job.finished_s - job.arrival.time_s for job in jobs)
    starts = sorted(job.started_s - job.arrival.time_s for job in jobs)
    return {
        "images_per_s": len(jobs) / seconds,
        "p50_s": _quantile(latencies, 0.5),
        "p99_s": _quantile(latencies, 0.99),
        "start_p50_steps": _quantile(starts, 0.5) / times.step_s,
        "start_max_s": starts[-1],
    }


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]


def saturated(simulation: Simulation) -> Iterator[tuple[str, Figures]]:
    """Yield each case and the images a second of every policy, all jobs waiting from the start."""
    print("| all jobs wait: images/s | " + " | ".join(POLICIES) + " | streams ÷ static |")
    print("|---|" + "---|" * (len(POLICIES) + 1))
    for case, (mix, times) in SATURATED.items():
        rates = {
            policy: simulation.run(policy, mix, times, math.inf)["images_per_s"]
            for policy in POLICIES
        }
        ratio = rates["streams"] / rates["static"]
        cells = " | ".join(f"{rate:.2f}" for rate in rates.values())
        print(f"| {case} | {cells} | {ratio:.2f} |")
        yield case, {**rates, "streams_by_static": ratio}


def under_load(
    simulation: Simulation, title: str, mix: Mix, times: DeviceTimes
) -> dict[str, dict[float, Figures]]:
    """Run every policy at every load. Return the figures by policy and load."""
    print(f"\n| {title}: offered load | policy | p50 s | p99 s | submit to first step, p50 steps |")
    print("|---|---|---|---|---|")
    table: dict[str, dict[float, Figures]] = {policy: {} for policy in POLICIES}
    for load in LOADS:
        for policy in POLICIES:
            got = table[policy][load] = simulation.run(policy, mix, times, load)
            print(
                f"| {load:.2f} | {policy} | {got['p50_s']:.2f} | {got['p99_s']:.2f} "
                f"| {got['start_p50_steps']:.1f} |"
            )
    return table


def draw(table: Mapping[str, Mapping[float, Figures]], title: str, folder: Path, name: str) -> None:
    """Write the charts of latency against the offered load."""
    for figure in ("p50_s", "p99_s"):
        quantile = figure.removesuffix("_s")
        lines = {
            policy: [(load, got[figure]) for load, got in by_load.items()]
            for policy, by_load in table.items()
        }
        svg = line_chart(f"{title}: {quantile}", "offered load", "seconds, submit to done", lines)
        (folder / f"latency-{name}-{quantile}.svg").write_text(svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charts", type=Path, help="folder for the charts")
    options = parser.parse_args()
    figures: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, LocalRedisServer(Path(folder)) as server:
        simulation = Simulation(server)
        for case, rates in saturated(simulation):
            figures[case] = rates
        for name, title, mix in (
            ("poisson", "Poisson, 10-50 steps", MIXED),
            ("bursts", "Bursts of 32", Mix(burst=32)),
        ):
            table = under_load(simulation, title, mix, DeviceTimes())
            for policy, by_load in table.items():
                figures |= {f"{name}, {policy}, {load}": got for load, got in by_load.items()}
            if options.charts is not None:
                draw(table, title, options.charts, name)
    rounded = {
        case: {name: round(value, 3) for name, value in got.items()}
        for case, got in figures.items()
    }
    print_json("policies", rounded)


if __name__ == "__main__":
    main()
