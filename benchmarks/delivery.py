"""Measure the queue without a model: how fast jobs are accepted, and how soon they start.

`python -m benchmarks.delivery` starts its own Redis (AOF, `appendfsync always`) and one worker with
the fake engine. The peer is Celery's own `apply_async` on the same Redis in the same run.

It does not show networks between hosts, several workers, or real uploads.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from celery import Celery

from benchmarks.report import parser_of, print_json
from imagefleet import Client, Job
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.fake.fake_engine import FakeEngine

ROOT = Path(__file__).parents[1]
JOBS = 2_000
IDLE_JOBS = 50
BATCH_S = 0.05
STEPS = 4
CAPACITY = 8


def accept_rates(server: LocalRedisServer) -> dict[str, float]:
    """Measure accepted jobs per second: `submit_many`, `submit`, and Celery's `send_task`."""
    client = Client(server.url, namespace="rates")
    prompts = [f"prompt {number}" for number in range(JOBS)]
    many = _rate(JOBS, lambda: client.submit_many(prompts))
    single = _rate(JOBS // 4, lambda: [client.submit(prompt) for prompt in prompts[: JOBS // 4]])
    with Celery(broker=celery_url(server.url), set_as_current=False) as app:
        app.set_default()
        kwargs = pack(JobRequest(prompt="prompt"))
        app.send_task(TASK_NAME, kwargs=kwargs, queue="peer")  # connects
        peer = _rate(
            JOBS // 4,
            lambda: [
                app.send_task(TASK_NAME, kwargs=kwargs, queue="peer") for _ in range(JOBS // 4)
            ],
        )
    return {"submit_many_per_s": many, "submit_per_s": single, "celery_apply_async_per_s": peer}


def worker_figures(server: LocalRedisServer, folder: Path) -> dict[str, float]:
    """Measure the latency of an idle worker, and its rate as a share of its engine's."""
    step_s = BATCH_S / STEPS
    environment = {
        **os.environ,
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_MODEL": f"fake:seconds={step_s},capacity={CAPACITY}",
        "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
    }
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "imagefleet.worker"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        client = Client(server.url)
        client.submit("wake up").result(timeout=60)
        waits = [_waited(client.submit("one")) for _ in range(IDLE_JOBS)]
        used = _cpu_s(worker.pid)
        jobs = client.submit_many([f"p {number}" for number in range(JOBS)])
        for _ in client.as_completed(jobs, timeout=300):
            pass
        found = client.statuses(job.id for job in jobs)
        used = _cpu_s(worker.pid) - used
    finally:
        worker.terminate()
        worker.wait()
    begun = min(status.started_at or 0 for status in found)
    ended = max(status.finished_at or 0 for status in found)
    rate = len(jobs) / (ended - begun)
    return {
        "idle_submit_to_start_ms_p50": 1e3 * statistics.median(waits),
        "idle_submit_to_start_ms_max": 1e3 * max(waits),
        "images_per_s": rate,
        "share_of_bare_device_loop": rate / _bare_rate(step_s),
        "worker_cpu_ms_a_job": 1e3 * used / len(jobs),
    }


def _bare_rate(step_s: float) -> float:
    """Return images per second of the same engine in a bare loop."""
    engine = FakeEngine(seconds=step_s, capacity=CAPACITY)
    spec = ImageSpec(prompt="p", num_inference_steps=STEPS, guidance_scale=7.5)

    def generate() -> None:
        for _ in range(40):
            for _ in engine.start_batch([spec] * CAPACITY, engine.info.shapes[0]):
                pass

    return _rate(40 * CAPACITY, generate)


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _waited(job: Job) -> float:
    job.result(timeout=30)
    status = job.status()
    assert status.started_at is not None
    return status.started_at - status.submitted_at


def _rate(count: int, act: Callable[[], object]) -> float:
    """Return how many of `count` things a second `act` does."""
    started = time.perf_counter()
    act()
    return count / (time.perf_counter() - started)


def main() -> None:
    parser_of(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRedisServer(Path(name) / "redis") as server:
        figures = accept_rates(server) | worker_figures(server, Path(name))
    for figure, value in figures.items():
        print(f"{figure:32} {value:10.2f}")
    numbers = {figure: round(value, 3) for figure, value in figures.items()}
    print_json("delivery", numbers)


if __name__ == "__main__":
    main()
