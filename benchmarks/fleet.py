"""Measure what a fleet of many hosts asks of one Redis, without its devices.

`python -m benchmarks.fleet --hosts 1 8 64 256` starts its own Redis (AOF, `appendfsync always`) and
simulates hosts in a few processes: the real claims, leases, heartbeats, records and progress of
batches that take as long as on a TPU host, 8 images in 7 s with 50 steps. The peer is the ideal:
as many batches as fit into the time. It reports the share of the ideal that was reached, how long a
claim takes, and the CPU time of Redis per image.

It does not show networks between hosts, uploads, or callbacks. Redis and all simulated hosts share
the cores of this machine, so a share below 1 may be their fault: see `host_cores`.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path

import redis

from benchmarks.report import print_json
from imagefleet import Client
from imagefleet.shared.jobs.model import ImageFormat, ImageResult, JobResult
from imagefleet.shared.jobs.queues import queue_name
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import StartRequest
from imagefleet.shared.jobs.worker_status import WorkerRegistry, WorkerState, WorkerStatus
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.devices.slots import Slot, slots_of
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.progress import MIN_INTERVAL_S, ProgressReporter
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper

NAMESPACE = "fleet"
CAPACITY = 8
STEPS = 50
BATCH_S = 7.0
LEASE_S = 20.0
PROCESSES = 2
RETENTION_S = 3_600
_REQUEST = JobRequest(prompt="a lighthouse at night", num_inference_steps=STEPS)
_INFO = FakeEngine(capacity=CAPACITY, max_num_inference_steps=STEPS).info


@dataclass
class Measured:
    """What the hosts of one process did in the measured time."""

    images: int = 0
    claims_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


class SimulatedHost:
    """Does what a worker asks of Redis, and sleeps while its devices would work."""

    def __init__(self, url: str, number: int) -> None:
        self._client = connect(url)
        self._records = JobRecords(self._client, NAMESPACE, RETENTION_S)
        self._claims = Claims(
            no_retry_client=self._client,
            retrying_client=self._client,
            namespace=NAMESPACE,
            worker=f"host-{os.getpid()}-{number}",
            lease_s=LEASE_S,
        )
        self._groups = [
            QueueGroup(name="native", queues=(queue_name(NAMESPACE, None, None, None),))
        ]
        self._progress = ProgressReporter(self._records)
        self._registry = WorkerRegistry(self._client, NAMESPACE)
        self._keeper = LeaseKeeper(
            self._claims,
            self._records,
            LEASE_S,
            on_lost=lambda: None,
            on_heartbeat=self._announce,
        )

    def run(self, begin: float, seconds: float, measured: Measured, lock: threading.Lock) -> None:
        """Run batches until `seconds` after `begin` (monotonic); count those that end after it."""
        self._keeper.start()
        running: list[Slot] = []
        due = time.monotonic()
        while time.monotonic() < begin + seconds:
            slots = self._claim(begin, measured, lock)
            self._finish(running)
            self._denoise(slots, due)
            due = max(due + BATCH_S, time.monotonic())
            if begin <= time.monotonic() < begin + seconds:
                with lock:
                    measured.images += len(slots)
            running = slots
        self._finish(running)
        self._keeper.stop()
        self._claims.release_all()

    def _announce(self) -> None:
        worker = self._claims.worker
        self._registry.announce(
            WorkerStatus(worker=worker, state=WorkerState.READY, capacity=CAPACITY)
        )

    def _claim(self, begin: float, measured: Measured, lock: threading.Lock) -> list[Slot]:
        started = time.monotonic()
        claimed = self._claims.claim(self._groups, CAPACITY, default_steps=STEPS)
        if started >= begin:
            with lock:
                measured.claims_s.append(time.monotonic() - started)
        attempts = []
        for each in claimed:
            job_id = json.loads(each.message)["headers"]["id"]
            attempts.append(plan_attempt(job_id, _REQUEST, _INFO, tag=each.tag, token=each.attempt))
        claims = self._claims.key
        self._records.start(
            *(
                StartRequest(job_id=each.job_id, attempt=each.token, claim=(claims, each.tag))
                for each in attempts
            )
        )
        return [slot for attempt in attempts for slot in slots_of(attempt)]

    def _denoise(self, slots: Sequence[Slot], since: float) -> None:
        """Report progress as often as a worker would, until the batch would be done."""
        while (left := since + BATCH_S - time.monotonic()) > 0:
            time.sleep(min(left, MIN_INTERVAL_S))
            done = min(1.0, (time.monotonic() - since) / BATCH_S)
            if done < 1.0:
                self._progress.record(dict.fromkeys(slots, math.floor(done * STEPS)))

    def _finish(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            attempt = slot.work
            assert isinstance(attempt, Attempt)
            self._records.succeed(
                attempt.job_id, attempt.token, _result(attempt.job_id), None, steps=STEPS
            )
            self._claims.ack(attempt.tag, self._records.key(attempt.job_id))


def _result(job_id: str) -> JobResult:
    image = ImageResult(
        index=0,
        key=f"jobs/{job_id}/0.png",
        url=f"s3://images/jobs/{job_id}/0.png",
        seed=1,
        sha256="0" * 64,
        pixel_sha256="0" * 64,
        size=400_000,
        height=512,
        width=512,
        format=ImageFormat.PNG,
    )
    return JobResult(
        images=(image,), model="m", model_digest="sha256:" + "0" * 64, worker="w", timings={}
    )


def _simulate(
    url: str, hosts: int, begin: float, seconds: float, answers: "Queue[Measured]"
) -> None:
    """Run `hosts` hosts in this process, one thread each."""
    measured, lock = Measured(), threading.Lock()
    stagger = BATCH_S / max(1, hosts)

    def run(number: int) -> None:
        time.sleep(number * stagger)  # the batches of a fleet do not end at the same moment
        SimulatedHost(url, number).run(begin, seconds, measured, lock)

    with ThreadPoolExecutor(hosts) as pool:
        list(pool.map(run, range(hosts)))
    used = resource.getrusage(resource.RUSAGE_SELF)
    measured.cpu_s = used.ru_utime + used.ru_stime
    answers.put(measured)


def measure(server: LocalRedisServer, hosts: int, seconds: float) -> dict[str, float]:
    """Measure a fleet of `hosts` for `seconds` after it has begun."""
    client = connect(server.url)
    client.flushall()
    rate = hosts * CAPACITY / BATCH_S
    jobs = math.ceil(rate * (seconds + 4 * BATCH_S))
    with Client(server.url, namespace=NAMESPACE) as producer:
        producer.submit_many((_REQUEST.prompt for _ in range(jobs)), num_inference_steps=STEPS)
    begin = time.monotonic() + 2.5 * BATCH_S
    context = multiprocessing.get_context("spawn")
    answers: Queue[Measured] = context.Queue()
    shares = [(hosts + number) // PROCESSES for number in range(PROCESSES)]
    processes = [
        context.Process(target=_simulate, args=(server.url, share, begin, seconds, answers))
        for share in shares
        if share
    ]
    for process in processes:
        process.start()
    time.sleep(max(0.0, begin - time.monotonic()))
    before = _cpu_s(client)
    time.sleep(seconds)
    redis_s = _cpu_s(client) - before
    measured = [answers.get(timeout=10 * BATCH_S) for _ in processes]
    for process in processes:
        process.join()
    images = sum(each.images for each in measured)
    claims = sorted(latency for each in measured for latency in each.claims_s)
    return {
        "images_per_s": images / seconds,
        "of_ideal": images / (rate * seconds),
        "claim_ms_p50": 1e3 * claims[len(claims) // 2],
        "claim_ms_p99": 1e3 * claims[math.ceil(0.99 * len(claims)) - 1],
        "redis_ms_per_image": 1e3 * redis_s / images,
        "redis_cores": redis_s / seconds,
        "host_cores": sum(each.cpu_s for each in measured) / (seconds + 2.5 * BATCH_S),
    }


def _cpu_s(client: redis.Redis) -> float:
    reported = client.info("cpu")
    return float(reported["used_cpu_user"]) + float(reported["used_cpu_sys"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--seconds", type=float, default=21.0)
    options = parser.parse_args()
    figures: dict[str, float] = {}
    print("| hosts | images/s | of ideal | claim ms p50, p99 | Redis ms an image, cores |")
    print("|---|---|---|---|---|")
    for hosts in options.hosts:
        with tempfile.TemporaryDirectory() as folder, LocalRedisServer(Path(folder)) as server:
            got = measure(server, hosts, options.seconds)
        print(
            f"| {hosts} | {got['images_per_s']:.1f} | {got['of_ideal']:.3f} "
            f"| {got['claim_ms_p50']:.1f}, {got['claim_ms_p99']:.1f} "
            f"| {got['redis_ms_per_image']:.2f}, {got['redis_cores']:.2f} |"
        )
        figures |= {f"{name}_{hosts}_hosts": round(value, 4) for name, value in got.items()}
    print_json("fleet", figures)


if __name__ == "__main__":
    main()
