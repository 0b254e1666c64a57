"""Measure static against continuous batching with the worker's own device loops.

`python -m benchmarks.batching [--model shapes --devices 2]` claims real messages from a real Redis,
which it starts, and runs them through both device loops, in turn. By default the devices are those
of the fake engine, with the estimated times of Stable Diffusion 1.4 on v5e-8 (docs/tpu.md): they
sleep. A duty of 1 means that no device waited between the first claim and the last image. Printed
are the medians of the rounds, and of the ratios of each round. Of a model on a CPU the CPU time an
image is what can be compared while the machine does other work.

It does not show Celery, records, encoding or uploads, nor real devices. On a busy machine threads
wake late, which lengthens every step.
"""

import argparse
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks.report import print_json
from benchmarks.simulation.arrivals import Arrival, Mix, poisson
from benchmarks.simulation.queues import SimulatedJob, SimulatedQueues
from imagefleet.shared.errors import JobCancelled
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.batching import next_batch
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.make_loop import make_loop
from imagefleet.worker.devices.prefetch_timer import PrefetchTimer
from imagefleet.worker.devices.slots import Slot, Work
from imagefleet.worker.engine.contract.interface import Engine, ImageSpec, Shape, Stream
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.loading.load_engine import load_engine

SEED = 17
STEP_S, DECODE_S, DEVICES = 0.022, 0.065, 8
_MAX_DELIVERIES = 4
_POLL_S = 0.02
CASES = {
    "saturated, 30 steps, 8 tenants": (Mix(min_steps=30, max_steps=30), math.inf),
    "saturated, 10-50 steps, 8 tenants": (Mix(), math.inf),
    "saturated, 10-50 steps, 1 tenant": (Mix(tenants=1), math.inf),
    "offered load 0.5, 10-50 steps, 8 tenants": (Mix(), 0.5),
}
COLUMNS = {
    "images_per_s": "images/s",
    "p50_s": "p50 s",
    "p99_s": "p99 s",
    "start_p50_steps": "submit to first step, p50 steps",
    "duty": "duty",
    "cpu_ms_per_image": "CPU ms an image",
}
Figures = dict[str, float]


class QueueSource:
    """Claims as the dispatcher does, for jobs without Celery and records."""

    def __init__(self, queues: SimulatedQueues, capacity: int, began: float) -> None:
        self._queues, self._capacity, self._began = queues, capacity, began
        self._waiting: deque[Slot] = deque()
        self._timer = PrefetchTimer()
        self._lock = threading.Lock()

    def next_batch(self, free_slots: int | None = None, prefer: Shape | None = None) -> list[Slot]:
        free_slots = free_slots or self._capacity
        with self._lock:
            self._claim(free_slots, prefer)
            return next_batch(self._waiting, free_slots, _MAX_DELIVERIES)

    def prefetch_if_due(self, batch: Sequence[Slot], step: int) -> None:
        if self._timer.should_prefetch(batch, step):
            with self._lock:
                self._claim(self._capacity, None)

    def _claim(self, free_slots: int, prefer: Shape | None) -> None:
        started = time.monotonic()
        longest = max((slot.spec.steps for slot in self._waiting), default=0)
        wanted = free_slots - len(self._waiting)
        self._waiting += self._queues.claim(
            started - self._began, wanted, prefer=prefer, batch_steps=longest
        )
        self._timer.record_preparation(time.monotonic() - started)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What is measured: an engine that is warm for each policy."""

    engines: Mapping[str, Engine]
    streams: Sequence[Stream]
    """Of the engine for `continuous`."""
    step_s: float
    decode_s: float

    def ideal_rate(self, steps: float) -> float:
        """Return the images a second of devices that never wait."""
        capacity = self.engines["static"].capacity
        return capacity / (steps * self.step_s + self.decode_s)


def run(
    server: LocalRedisServer, host: Host, policy: str, name: str, log: list[Arrival]
) -> Figures:
    """Run a log with one policy. Return images a second, latencies and duty."""
    engine = host.engines[policy]
    streams = host.streams if policy == "continuous" else ()
    queues = SimulatedQueues(server, name, log)
    began, cpu_began = time.monotonic(), time.process_time()
    source = QueueSource(queues, engine.capacity, began)

    def report(steps: Mapping[Slot, int]) -> None:
        for slot in steps:
            job = slot.work
            assert isinstance(job, SimulatedJob)
            job.started_s = job.started_s or time.monotonic() - began

    health = HealthCheck(engine, MemoryStore(), 60.0, streams)
    loop = make_loop(engine, streams, source, report, _POLL_S, health, lambda *_: None)
    loop.start()
    while len(queues.jobs) < len(log):
        time.sleep(0.05)
    for job in queues.jobs:
        job.wait_for_images()
    seconds = max(job.finished_s for job in queues.jobs) - began
    cpu_s = time.process_time() - cpu_began
    loop.stop()
    loop.join(60)
    busy_s = seconds - (log[0].time_s if log[-1].time_s else 0.0)
    figures = _figures(queues.jobs, host, busy_s, began)
    return {**figures, "cpu_ms_per_image": 1e3 * cpu_s / len(log)}


class StepClock:
    """Notes when the first step of each job was done, and how long the other steps take."""

    def __init__(self) -> None:
        self.first_step_at: dict[Work, float] = {}
        self.step_times: list[float] = []
        self._latest: dict[Work, tuple[int, float]] = {}

    def report(self, steps: Mapping[Slot, int]) -> None:
        """Take the report of a device loop."""
        now = time.monotonic()
        for slot, done in steps.items():
            before, at = self._latest.get(slot.work, (0, 0.0))
            if done and not before:
                self.first_step_at[slot.work] = now
            if before and done == before + 1:
                self.step_times.append(now - at)
            if done > before:
                self._latest[slot.work] = (done, now)


def cancel_to_next_step(server: LocalRedisServer, host: Host, name: str) -> float:
    """Return the steps between cancelling a job and the begin of the next job's first step, on
    devices whose slots are all taken: the median of 9. A step is one of this run, not of an idle
    machine."""
    engine = host.engines["continuous"]
    limit, streams = engine.info.max_num_inference_steps, host.streams
    mix = Mix(min_steps=limit, max_steps=limit, tenants=1, shapes=engine.info.shapes[:1])
    queues = SimulatedQueues(server, name, poisson(mix, math.inf, engine.capacity + 9, SEED))
    source = QueueSource(queues, engine.capacity, time.monotonic())
    clock = StepClock()
    health = HealthCheck(engine, MemoryStore(), 60.0, streams)
    loop = make_loop(engine, streams, source, clock.report, _POLL_S, health, lambda *_: None)
    loop.start()
    delays = []
    for running in range(engine.capacity, engine.capacity + 9):
        while len(clock.first_step_at) < running:
            time.sleep(0.001)
        time.sleep(5 * host.step_s)
        cancelled_at = time.monotonic()
        next(job for job in queues.jobs if not job.ended).abandon(JobCancelled("to measure"))
        while len(clock.first_step_at) == running:
            time.sleep(0.0005)
        delays.append(max(clock.first_step_at.values()) - cancelled_at)
    for job in queues.jobs:
        job.abandon(JobCancelled("measured"))
    loop.stop()
    loop.join(60)
    return median(delays) / median(clock.step_times) - 1


def _figures(jobs: Sequence[SimulatedJob], host: Host, seconds: float, began: float) -> Figures:
    latencies = sorted(job.finished_s - began - job.arrival.time_s for job in jobs)
    starts = sorted(job.started_s - job.arrival.time_s for job in jobs)
    work_s = sum(job.arrival.steps * host.step_s + host.decode_s for job in jobs)
    return {
        "images_per_s": len(jobs) / seconds,
        "p50_s": latencies[len(latencies) // 2],
        "p99_s": latencies[math.ceil(0.99 * len(latencies)) - 1],
        "start_p50_steps": starts[len(starts) // 2] / host.step_s,
        "duty": work_s / seconds / host.engines["static"].capacity,
    }


def summary(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    """Return the medians of each policy, and those of continuous ÷ static of each round."""
    ratios = [
        {name: got["continuous"][name] / got["static"][name] for name in got["static"]}
        for got in rounds
    ]
    lines = {policy: [got[policy] for got in rounds] for policy in ("static", "continuous")}
    return {
        line: {name: median(each[name] for each in got) for name in got[0]}
        for line, got in {**lines, "÷": ratios}.items()
    }


def _fake_host() -> Host:
    engine = FakeEngine(seconds=STEP_S, decode_s=DECODE_S, capacity=DEVICES, streams=DEVICES)
    return Host(
        engines=dict.fromkeys(("static", "continuous"), engine),
        streams=engine.open_streams(),
        step_s=STEP_S,
        decode_s=DECODE_S,
    )


def _model_host(model: str, devices: int, cache_dir: Path) -> Host:
    engines: dict[str, Engine] = {}
    for policy in ("static", "continuous"):
        engines[policy] = load_engine(
            model, devices=devices, cache_dir=cache_dir, max_num_inference_steps=50
        )
    engines["static"].warm()
    streams = engines["continuous"].open_streams()
    once = _seconds_of(engines["static"], 1)
    step_s = (_seconds_of(engines["static"], 21) - once) / 20
    return Host(engines=engines, streams=streams, step_s=step_s, decode_s=once - step_s)


def _seconds_of(engine: Engine, steps: int) -> float:
    """Return how long a full batch of `steps` steps takes: the shortest of three."""
    spec = ImageSpec(prompt="a red circle", num_inference_steps=steps, guidance_scale=3.0)
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        engine.start_batch([spec] * engine.capacity, engine.info.shapes[0]).images()
        seconds.append(time.monotonic() - started)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cache-dir", type=Path, default=Path("~/.cache/imagefleet").expanduser())
    options = parser.parse_args()
    figures: dict[str, float] = {}
    numbers = count()
    print(f"| case | policy | {' | '.join(COLUMNS.values())} |")
    print("|---|---|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory() as folder, LocalRedisServer(Path(folder)) as server:
        host = (  # after the server, since a process with JAX in it must not fork
            _fake_host()
            if options.model == "fake"
            else _model_host(options.model, options.devices, options.cache_dir)
        )
        for case, (a_mix, load) in CASES.items():
            mix = replace(a_mix, shapes=host.engines["static"].info.shapes[:1])
            log = poisson(mix, load * host.ideal_rate(mix.mean_steps), options.jobs, SEED)
            rounds = []
            for number in range(options.rounds):
                policies = list(host.engines)[:: -1 if number % 2 else 1]
                rounds.append(
                    {
                        policy: run(server, host, policy, f"run{next(numbers)}", log)
                        for policy in policies
                    }
                )
            for line, cells in summary(rounds).items():
                text = " | ".join(f"{cells[name]:.3f}" for name in COLUMNS)
                print(f"| {case} | {line} | {text} |", flush=True)
                figures |= {f"{case}, {line}, {name}": each for name, each in cells.items()}
        cancelled = cancel_to_next_step(server, host, f"run{next(numbers)}")
        print(f"cancelled slot to the next job's first step: {cancelled:.1f} steps (median of 9)")
    recompiles = host.engines["continuous"].recompiles
    print_json(
        "batching",
        {name: round(value, 3) for name, value in figures.items()}
        | {
            "model": options.model,
            "recompiles": recompiles,
            "cancelled_to_next_first_step_steps": round(cancelled, 2),
        },
    )


if __name__ == "__main__":
    main()
