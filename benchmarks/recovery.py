"""Measure the recovery after `kill -9`, and how full batches are under load.

`python -m benchmarks.recovery` starts its own Redis (AOF, `appendfsync always`) and workers with
the fake engine. It takes about five minutes and prints the time until a killed worker's jobs run
again, the images that are generated twice, the sizes of batches, and the rate of claims.

It does not show several hosts, real devices, or a slow or partitioned network.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.report import parser_of, print_json
from imagefleet import Client, Job
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import queue_name
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.settings.worker_settings import WorkerSettings

ROOT = Path(__file__).parents[1]
CAPACITY = 8
PAIRS = 4
ROUNDS = 3
DEFAULT_LEASE_S = float(WorkerSettings.model_fields["lease_s"].default)
STREAM_LEASE_S = 3.0
STREAM_KILLS = 12
BATCH_S = 0.4
LOAD_S = 15.0
MESSAGES = 4_000

Figures = dict[str, float]


class Worker:
    """A worker process whose fake engine appends the size of each batch to `batches`."""

    def __init__(
        self,
        server: LocalRedisServer,
        folder: Path,
        namespace: str,
        *,
        batch_s: float,
        lease_s: float,
    ) -> None:
        self.batches = folder / f"{namespace}-{time.monotonic_ns()}.batches"
        self.batches.touch()
        environment = {
            **os.environ,
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_NAMESPACE": namespace,
            "IMAGEFLEET_MODEL": f"fake:seconds={batch_s / 4},capacity={CAPACITY}",
            "IMAGEFLEET_STORAGE_URL": "memory://",
            "IMAGEFLEET_LEASE_S": str(lease_s),
        }
        self._log = self.batches.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.recovery", "--worker", self.batches],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def sizes(self) -> list[int]:
        return [int(size) for size in self.batches.read_text().split()]

    def await_ready(self) -> None:
        while "Connected to" not in self._log.read_text():
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def write_batch_sizes(path: Path) -> None:
    """Run `imagefleet-worker` here, with an engine that appends batch sizes to `path`."""
    from imagefleet.worker.commands.cli import main as worker_main
    from imagefleet.worker.engine.contract.interface import ImageSpec, RunningBatch, Shape
    from imagefleet.worker.engine.fake.fake_engine import FakeEngine

    start_batch = FakeEngine.start_batch

    def counted(self: FakeEngine, specs: Sequence[ImageSpec], shape: Shape) -> RunningBatch:
        with path.open("a") as sizes:
            sizes.write(f"{len(specs)}\n")
        return start_batch(self, specs, shape)

    FakeEngine.start_batch = counted  # type: ignore[method-assign]
    worker_main(args=[])


@contextmanager
def killing_at_exit(workers: list[Worker]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()


def restarts(server: LocalRedisServer, folder: Path) -> Figures:
    """Measure the seconds from `kill -9` until another worker runs the jobs, with the default
    lease."""
    with ThreadPoolExecutor(PAIRS) as pool:
        waits = [
            wait
            for found in pool.map(lambda pair: _restarts(server, folder, pair), range(PAIRS))
            for wait in found
        ]
    return {
        "kills": PAIRS * ROUNDS,
        "kill_to_restart_s_p50": statistics.median(waits),
        "kill_to_restart_s_max": max(waits),
    }


def _restarts(server: LocalRedisServer, folder: Path, pair: int) -> list[float]:
    """Kill the busy one of two workers, several times. The other one is busy in the next round."""
    namespace = f"restarts{pair}"
    client = Client(server.url, namespace=namespace)
    waits: list[float] = []
    workers: list[Worker] = []

    def start() -> Worker:
        worker = Worker(server, folder, namespace, batch_s=4.0, lease_s=DEFAULT_LEASE_S)
        workers.append(worker)
        worker.await_ready()
        return worker

    with killing_at_exit(workers):
        victim = start()
        for _ in range(ROUNDS):
            jobs = client.submit_many(["p"] * CAPACITY, num_inference_steps=100)
            _wait_until(client, jobs, lambda deliveries, state: state is State.RUNNING)
            other = start()
            time.sleep(random.uniform(0, DEFAULT_LEASE_S / 4))  # any moment between two renewals
            killed_at = time.time()
            victim.kill()
            _wait_until(
                client, jobs, lambda deliveries, state: deliveries == 2 and state is State.RUNNING
            )
            waits += [
                (status.started_at or 0) - killed_at
                for status in client.statuses(job.id for job in jobs)
            ]
            for job in jobs:
                job.cancel()
            for _ in client.as_completed(jobs, timeout=60):
                pass
            victim = other
    return waits


def _wait_until(
    client: Client, jobs: Sequence[Job], condition: Callable[[int, State], bool]
) -> None:
    deadline = time.monotonic() + 60
    while True:
        found = client.statuses(job.id for job in jobs)
        if all(condition(status.deliveries, status.state) for status in found):
            return
        assert time.monotonic() < deadline, [status.state for status in found]
        time.sleep(0.05)


def generated_twice(server: LocalRedisServer, folder: Path) -> Figures:
    """Kill one of two busy workers every two seconds, and count the images generated again."""
    namespace = "stream"
    client = Client(server.url, namespace=namespace)
    jobs = client.submit_many([f"p {number}" for number in range(1_000)])
    workers: list[Worker] = []

    def start() -> Worker:
        worker = Worker(server, folder, namespace, batch_s=BATCH_S, lease_s=STREAM_LEASE_S)
        workers.append(worker)
        worker.await_ready()
        return worker

    with killing_at_exit(workers):
        living = [start(), start()]
        for _ in range(STREAM_KILLS):
            time.sleep(random.uniform(1, 3))
            victim = living.pop(0)
            victim.kill()
            living.append(start())
        for _ in client.as_completed(jobs, timeout=300):
            pass
    begun = sum(sum(worker.sizes()) for worker in workers)
    return {
        "stream_kills": STREAM_KILLS,
        "generated_again_per_kill": (begun - len(jobs)) / STREAM_KILLS,
    }


def batch_sizes(server: LocalRedisServer, folder: Path) -> Figures:
    """Measure the batch sizes of one worker while single prompts arrive at random times."""
    figures: Figures = {}
    for percent in (25, 75, 150):
        namespace = f"load{percent}"
        client = Client(server.url, namespace=namespace)
        workers = [Worker(server, folder, namespace, batch_s=BATCH_S, lease_s=DEFAULT_LEASE_S)]
        with killing_at_exit(workers):
            workers[0].await_ready()
            jobs = _poisson(client, percent / 100 * CAPACITY / BATCH_S)
            sizes = workers[0].sizes()
            found = client.statuses(job.id for job in jobs)
        waits = [each.started_at - each.submitted_at for each in found if each.started_at]
        figures |= {
            f"batch_mean_at_{percent}_percent": statistics.mean(sizes),
            f"batch_full_share_at_{percent}_percent": sizes.count(CAPACITY) / len(sizes),
            f"batch_of_one_share_at_{percent}_percent": sizes.count(1) / len(sizes),
            f"wait_ms_p50_at_{percent}_percent": 1e3 * statistics.median(waits),
        }
    return figures


def _poisson(client: Client, rate_per_s: float) -> list[Job]:
    rng, jobs = random.Random(1), list[Job]()
    due = began = time.monotonic()
    while (due := due + rng.expovariate(rate_per_s)) < began + LOAD_S:
        time.sleep(max(0.0, due - time.monotonic()))
        jobs.append(client.submit("p"))
    return jobs


def claim_rates(server: LocalRedisServer) -> Figures:
    """Measure claims per second, 8 messages at a time, and acknowledgements one by one."""
    namespace = "claims"
    with ExitStack() as stack:
        no_retry_client = stack.enter_context(connect(server.url, retries=0))
        retrying_client = stack.enter_context(connect(server.url))
        Client(server.url, namespace=namespace).submit_many(["p"] * MESSAGES)
        claims = Claims(
            no_retry_client=no_retry_client,
            retrying_client=retrying_client,
            namespace=namespace,
            worker="w",
            lease_s=600,
        )
        claims.lease.acquire()
        queue = queue_name(namespace, None, None, None)
        groups = [QueueGroup(name="native", queues=(queue,))]
        began = time.perf_counter()
        claimed_messages = []
        while claimed := claims.claim(groups, CAPACITY):
            claimed_messages += claimed
        claimed_s, began = time.perf_counter() - began, time.perf_counter()
        for message in claimed_messages:
            claims.ack(message.tag)
        acked_s = time.perf_counter() - began
    assert len(claimed_messages) == MESSAGES
    return {"claims_per_s": MESSAGES / claimed_s, "acks_per_s": MESSAGES / acked_s}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--worker", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    batches: Path | None = parser.parse_args().worker
    if batches is not None:
        write_batch_sizes(batches)
    else:
        measure()


def measure() -> None:
    with tempfile.TemporaryDirectory() as name, LocalRedisServer(Path(name) / "redis") as server:
        folder = Path(name)
        figures = restarts(server, folder)
        figures |= generated_twice(server, folder)
        figures |= batch_sizes(server, folder)
        figures |= claim_rates(server)
    for figure, value in figures.items():
        print(f"{figure:36} {value:10.2f}")
    numbers = {figure: round(value, 3) for figure, value in figures.items()}
    print_json("recovery", numbers)


if __name__ == "__main__":
    main()
