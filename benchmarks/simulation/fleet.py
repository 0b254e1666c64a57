"""Run simulated hosts in a few processes, and measure what they ask of Redis."""

import math
import multiprocessing
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.queues import Queue
from typing import Any, Final

from celery import Celery

from benchmarks.simulation.counted import Counted
from benchmarks.simulation.redis_load import RedisLoad
from benchmarks.simulation.servers import Servers
from benchmarks.simulation.timetable import Timetable
from benchmarks.simulation.worker import BATCH_S, CAPACITY, STEPS, SimulatedWorker
from imagefleet import Client
from imagefleet.shared.redis_client.connection import celery_url, connect_lanes
from imagefleet.worker.engine.fake.fake_engine import FakeEngine

NAMESPACE: Final = "imagefleet"
IMAGES_PER_S: Final = CAPACITY / BATCH_S
"""Of one host."""
_PROCESSES: Final = 2
_THREADS: Final = 24
"""Of a process, beside one for each of its hosts: the ends of a batch wait for each other."""
_WARM_UP_BATCHES: Final = 2.5
_START_S: Final = 120.0
"""Seconds within which a process must have started its hosts."""
_RECEIVER: Final = "https://receiver.example/hook"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement."""

    hosts: int
    """Of the fleet, or of one process of it."""
    fleet: int
    seconds: float
    """Of a host that is not stretched."""
    stretch: float = 1.0
    callbacks: bool = False
    redis_share: float = 1.0
    """Each server gets this share of a core once the hosts work."""

    @property
    def images_per_s(self) -> float:
        """Images per second if no device ever waits."""
        return self.hosts * IMAGES_PER_S / self.stretch

    @property
    def measured_s(self) -> float:
        return self.seconds * self.stretch

    @property
    def warm_up_s(self) -> float:
        return _WARM_UP_BATCHES * BATCH_S * self.stretch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one process of simulated hosts saw."""

    images: int
    claims_s: list[float]
    late_s: list[float]
    cpu_s: float


def simulate(
    url: str, run: Run, number: int, all_ready: threading.Barrier, answers: "Queue[Answer]"
) -> None:
    """Run the hosts of `run` in this process, from when `all_ready` until all is measured."""
    timetable, counted = Timetable(), Counted()
    names = [f"host-{number}-{at}" for at in range(run.hosts)]
    hosts = make_hosts(url, names, timetable, counted, run.stretch)
    for host in hosts:
        host.join()
    all_ready.wait(_START_S)
    now = time.monotonic()
    counted.begin, counted.end = now + run.warm_up_s, now + run.warm_up_s + run.measured_s
    for at, host in enumerate(hosts):  # the batches of a fleet do not end at the same moment
        host.start(now + at * BATCH_S * run.stretch / run.hosts, run.fleet)
    timetable.run(counted.end, _THREADS + run.hosts)
    used = resource.getrusage(resource.RUSAGE_SELF)
    answers.put(
        Answer(
            images=counted.images,
            claims_s=counted.claims_s,
            late_s=timetable.late_s,
            cpu_s=used.ru_utime + used.ru_stime,
        )
    )


def make_hosts(
    url: str, names: Sequence[str], timetable: Timetable, counted: Counted, stretch: float = 1.0
) -> list[SimulatedWorker]:
    """Return hosts of this process, which share the connections to each lane."""
    lanes = connect_lanes(url, NAMESPACE)
    for lane in lanes:  # each host makes the same scripts
        lane.client.__dict__["register_script"] = cache(lane.client.register_script)
    celery = None
    if len(lanes) == 1:
        celery = Celery("simulation", backend=celery_url(url), set_as_current=False)
        celery.conf.result_expires = 3600
    engine = FakeEngine(capacity=CAPACITY, max_num_inference_steps=STEPS)
    return [
        SimulatedWorker(lanes, celery, engine, NAMESPACE, name, timetable, counted, stretch)
        for name in names
    ]


def simulate_fleet(servers: Servers, run: Run) -> dict[str, Any]:
    """Measure a fleet after it has warmed up."""
    load = RedisLoad(*servers.clients)
    jobs = math.ceil(run.images_per_s * (run.measured_s + run.warm_up_s)) + run.hosts * CAPACITY
    submit(servers.url, jobs, callbacks=run.callbacks)
    submitted = load.since_last()
    context = multiprocessing.get_context("spawn")
    answers: Queue[Answer] = context.Queue()
    shares = [(run.hosts + number) // _PROCESSES for number in range(_PROCESSES)]
    shares = [share for share in shares if share]
    all_ready = context.Barrier(len(shares) + 1)
    processes = [
        context.Process(
            target=simulate,
            args=(servers.url, replace(run, hosts=share), number, all_ready, answers),
        )
        for number, share in enumerate(shares)
    ]
    for process in processes:
        process.start()
    all_ready.wait(_START_S)
    with servers.limited_to(run.redis_share):
        time.sleep(run.warm_up_s)
        load.since_last()
        time.sleep(run.measured_s)
        used = load.since_last()
    got = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    images = sum(each.images for each in got)
    claims = sorted(latency for each in got for latency in each.claims_s)
    late = sorted(seconds for each in got for seconds in each.late_s)
    return {
        "images_per_s": images / run.measured_s,
        "of_linear": images / (run.images_per_s * run.measured_s),
        "claims_per_s": len(claims) / run.measured_s,
        "claim_ms_p50": 1e3 * _quantile(claims, 0.5),
        "claim_ms_p99": 1e3 * _quantile(claims, 0.99),
        "late_ms_p50": 1e3 * _quantile(late, 0.5),
        "late_ms_p99": 1e3 * _quantile(late, 0.99),
        "redis_ms_per_image": 1e3 * used.cpu_s / images,
        "redis_cores": used.cpu_s / run.measured_s,
        "images_per_s_of_a_full_core": images / used.cpu_s,
        "hosts_of_a_full_core": images / used.cpu_s / IMAGES_PER_S,
        "submit_redis_ms_per_image": 1e3 * submitted.cpu_s / jobs,
        "host_cores": sum(each.cpu_s for each in got) / (run.measured_s + run.warm_up_s),
        "commands_per_image": used.calls_by_command(images),
    }


def submit(url: str, jobs: int, *, callbacks: bool = False) -> None:
    """Submit jobs of a fleet in which nobody has announced a model, as many to each lane."""
    with Client(url, namespace=NAMESPACE) as producer:
        producer.submit_many(
            (
                {"prompt": f"a lighthouse at night, number {at}", "id": f"job-{at}"}
                for at in range(jobs)
            ),
            num_inference_steps=STEPS,
            callback_url=_RECEIVER if callbacks else None,
        )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan
