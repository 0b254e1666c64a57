"""Compare a bulk run with the bare engine: the cost of queueing, encoding and storing.

`python -m benchmarks.bulk` starts its own Redis (AOF, `appendfsync always`) and one worker at a
time, with the fake engine at 50 ms a batch, then with the bundled model. The peer is the same
engine in a bare loop, measured before and after in the same process. The time includes planning,
the start of the first shard and the end of the last one.

If the machine does other work, CPU time per image is the fairer comparison. The fake engine sleeps,
so for it only the share of the bare rate means something.

It does not show several workers, a store over a network, or images larger than 64x64.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import print_json
from imagefleet import Client
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.engine.contract.interface import Engine, ImageSpec
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.load_model import load_model

ROOT = Path(__file__).parents[1]
BARE_BATCHES = 20


@dataclass(frozen=True)
class Case:
    """One engine and the size of its run."""

    name: str
    model: str
    images: int
    shard_size: int
    steps: int | None


CASES = [
    Case("fake, 50 ms a batch", "fake:seconds=0.0125,capacity=8", 4_000, 500, 4),
    Case("bundled model", "shapes", 320, 80, None),
]


def measure(case: Case, folder: Path, server: LocalRedisServer) -> dict[str, float | str]:
    """Measure images per second of the bare loop and of a bulk run, and CPU time per image."""
    engine = load_bare(case)
    before = bare_loop(engine, case)
    namespace = f"b{uuid.uuid4().hex[:8]}"
    prompts = folder / f"{namespace}.txt"
    prompts.write_text("".join(f"a red circle, number {n}\n" for n in range(case.images)))
    environment = {
        **os.environ,
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_NAMESPACE": namespace,
        "IMAGEFLEET_MODEL": case.model,
        "IMAGEFLEET_STORAGE_URL": f"{folder.as_uri()}/jobs",
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
        client = Client(server.url, namespace=namespace)
        client.submit("wake up").result(timeout=300)
        used = cpu_s(worker.pid)
        started = time.perf_counter()
        options = {} if case.steps is None else {"num_inference_steps": case.steps}
        run = client.bulk(
            prompts,
            (folder / namespace).as_uri(),
            shard_size=case.shard_size,
            **options,
        )
        for _ in run.statuses(every_s=0.05):
            assert time.perf_counter() - started < 1_800
        seconds = time.perf_counter() - started
        used = cpu_s(worker.pid) - used
    finally:
        worker.terminate()
        worker.wait()
    after = bare_loop(engine, case)
    bare = (before.images_per_s + after.images_per_s) / 2
    return {
        "case": case.name,
        "bare_images_per_s": bare,
        "bulk_images_per_s": case.images / seconds,
        "share": case.images / seconds / bare,
        "bare_cpu_ms_per_image": (before.cpu_ms_per_image + after.cpu_ms_per_image) / 2,
        "worker_cpu_ms_per_image": 1e3 * used / case.images,
    }


def load_bare(case: Case) -> Engine:
    """Return the warm engine that a worker of `case` loads."""
    engine = load_model(WorkerSettings.load(model=case.model))
    engine.warm()
    return engine


@dataclass(frozen=True, kw_only=True)
class Bare:
    """The rates of the engine alone."""

    images_per_s: float
    cpu_ms_per_image: float


def bare_loop(engine: Engine, case: Case) -> Bare:
    """Run the engine in a loop that fetches the images and drops them."""
    info = engine.info
    specs = [
        ImageSpec(
            prompt="a red circle",
            seed=number,
            num_inference_steps=case.steps or info.default_num_inference_steps,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
        )
        for number in range(engine.capacity)
    ]
    started, used = time.perf_counter(), time.process_time()
    for _ in range(BARE_BATCHES):
        running_batch = engine.start_batch(specs, info.shapes[0])
        for _ in running_batch:
            pass
        running_batch.images()
    images = BARE_BATCHES * engine.capacity
    return Bare(
        images_per_s=images / (time.perf_counter() - started),
        cpu_ms_per_image=1e3 * (time.process_time() - used) / images,
    )


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used (Linux)."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[case.model.partition(":")[0] for case in CASES])
    only = parser.parse_args().only
    results = []
    for case in CASES:
        if only is None or case.model.startswith(only):
            with (
                tempfile.TemporaryDirectory() as name,
                LocalRedisServer(Path(name) / "r") as server,
            ):
                results.append(measure(case, Path(name), server))
    columns = list(results[0])
    print("  ".join(f"{column:>24}" for column in columns))
    for row in results:
        print("  ".join(_shown(value) for value in row.values()))
    print_json("bulk", {"cases": results})


def _shown(value: float | str) -> str:
    return f"{value:>24}" if isinstance(value, str) else f"{value:>24.3f}"


if __name__ == "__main__":
    main()
